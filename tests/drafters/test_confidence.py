"""Raw confidence scores (T24, refusal 7)."""

import numpy as np

from dsv4.drafters.confidence import ConfidenceHead
from tests.speculation.refusing import refuses

WITH = ConfidenceHead(np.array([0.5, -1, 2, 0.25, -0.5], np.float32), 0.125, True)
ALONE = ConfidenceHead(np.array([0.5, -1, 2], np.float32), -0.25, False)
HIDDEN, ROW = np.array([1, 2, 3], np.float32), np.array([4, 8], np.float32)


def test_scores_by_hand() -> None:
    assert WITH.raw_score(HIDDEN, ROW) == 1.625
    assert ALONE.raw_score(HIDDEN) == 4.25
    assert ALONE.raw_score(HIDDEN, ROW) == 4.25


def test_a_head_trained_with_table_rows_needs_them() -> None:
    with refuses("confidence-input"):
        WITH.raw_score(HIDDEN)
    with refuses("confidence-input"):
        WITH.raw_score(HIDDEN, ROW[:1])
