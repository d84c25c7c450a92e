"""Inputs for products with weights in blocks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import alternating, normal, one_huge, sprinkled, subnormal, uniform, wide


@cases_for("quant_linear_q8", "quant_linear_q4")
def quant_linear_cases() -> Iterator[Case]:
    """Rows of x around 8, rows of w around a block of warps, K around a warp's blocks."""
    scales: dict[str, Any] = dict(scales=uniform(0.001, 0.02))
    yield Case("smallest", T=1, N=1, K=32, **scales)
    for rows in (2, 3, 7, 8, 9, 17):
        yield Case("rows", T=rows, N=13, K=96, **scales)
    yield Case("whole warp", T=2, N=9, K=1024, **scales)
    yield Case("one block more", T=3, N=9, K=1056, **scales)
    yield Case("annihilating", T=2, N=9, K=256, x=alternating(1.0), codes=7, **scales)
    yield Case("one huge", T=2, N=9, K=256, x=one_huge(1e6), **scales)
    yield Case("binades", T=2, N=9, K=256, x=wide(-60, 60), **scales)
    yield Case("flushed scales", T=2, N=9, K=64, scales=0.0)
    yield Case("subnormal scales", T=2, N=9, K=64, scales=subnormal())
    yield Case("special", T=4, N=9, K=64, x=sprinkled(normal(), [np.nan, np.inf], 0.02), **scales)
    yield Case("published", T=8, N=5120, K=5120, level="full", **scales)
