"""The few largest of a row: by hand, ties, and NaN behind every number."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("candidates_topk")
test_speed = speed_tests("candidates_topk")


def test_a_row_by_hand(run: Run) -> None:
    x = np.array([[1, 5, 3, 5, 4]], np.float32)
    got = run("candidates_topk", T=1, V=5, K=4, x=x)
    assert got.ids.tolist() == [[1, 3, 4, 2]]
    assert got.values.tolist() == [[5, 5, 4, 3]]


def test_nan_comes_last_in_order_of_index(run: Run) -> None:
    x = np.array([[np.nan, -np.inf, np.nan, 0]], np.float32)
    assert run("candidates_topk", T=1, V=4, K=4, x=x).ids.tolist() == [[3, 1, 0, 2]]


def test_the_first_of_equal_rows_wins_everywhere(run: Run) -> None:
    got = run("candidates_topk", T=1, V=1500, K=8, x=2.0)
    assert got.ids.tolist() == [list(range(8))]


def test_more_candidates_than_a_slot_may_have_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="takes one element"):
        run("candidates_topk", T=1, V=64, K=33)
