"""Inputs for the Hadamard transform: every width, rows that cancel, both ends of the range."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    alternating,
    extreme,
    literal,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    wide,
)


@cases_for("hadamard")
def hadamard_cases() -> Iterator[Case]:
    """The indexer's 128, and every other width at a number of rows that fills no block."""
    indexer = 128.0**-0.5
    yield Case("smallest", T=1, K=2, scale=1.0)
    yield Case("known", T=1, K=4, x=literal([1, 2, 3, 4]), scale=1.0)
    for width in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        yield Case("tail", T=7, K=width, scale=width**-0.5)
    yield Case("short rows", T=133, K=4, scale=0.5)
    yield Case("key", T=1, K=128, scale=indexer)
    yield Case("queries", T=64, K=128, scale=indexer)
    yield Case("cancel", T=5, K=128, x=alternating(1.0, noise=1e-6), scale=indexer)
    yield Case("one huge", T=5, K=128, x=one_huge(1e6), scale=indexer)
    yield Case("binades", T=5, K=256, x=wide(-100, 100), scale=1 / 16)
    yield Case("subnormal", T=5, K=128, x=subnormal(), scale=indexer)
    yield Case("extreme", T=5, K=128, x=extreme(1 / 256), scale=indexer)
    yield Case("special", T=40, K=128, x=sprinkled(normal(), [np.inf, np.nan], 0.01), scale=indexer)
    yield Case("negative scale", T=3, K=64, scale=-0.3)
    yield Case("verify", T=6 * 64, K=128, scale=indexer)
    yield Case("prefill", T=512 * 64, K=128, scale=indexer, level="full")
