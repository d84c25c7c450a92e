"""Inputs for the choice of candidates: ties, few numbers, rows around a block."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import literal, normal, sprinkled, wide


@cases_for("candidates_topk")
def candidates_cases() -> Iterator[Case]:
    """Rows around a block of threads; all equal; more candidates than numbers."""
    yield Case("smallest", T=1, V=1, K=1)
    yield Case("everything", T=3, V=7, K=7)
    yield Case("off the block", T=5, V=513, K=4)
    yield Case("most", T=2, V=1000, K=32)
    yield Case("all equal", T=2, V=600, K=16, x=1.5)
    yield Case("ties", T=2, V=600, K=16, x=literal([1.0, 3.0, 2.0, 3.0, -1.0]))
    yield Case("zeros of both signs", T=1, V=40, K=8, x=literal([0.0, -0.0]))
    yield Case("binades", T=2, V=600, K=16, x=wide(-100, 100))
    few = literal([np.nan, np.nan, 2.0, -np.inf, np.nan, np.inf, np.nan])
    yield Case("fewer numbers than candidates", T=1, V=7, K=6, x=few)
    yield Case("no number", T=1, V=40, K=3, x=literal([np.nan]))
    specials = sprinkled(normal(), [np.nan, np.inf, -np.inf], 0.02)
    yield Case("special", T=4, V=515, K=16, x=specials)
    yield Case("vocabulary", T=8, V=151936, K=16, level="full")
