"""Inputs for the dynamic convolution."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import alternating, normal, sprinkled, subnormal, wide


@cases_for("dynconv")
def dynconv_cases() -> Iterator[Case]:
    """Blocks shorter and longer than the taps, channels off a thread block, both stages."""
    for stage in (0, 1):
        yield Case(f"stage {stage}", T=7, D=264, C=2, G=33, stage=stage)
    yield Case("smallest", T=1, D=1, C=1, G=1)
    yield Case("more taps than rows", T=3, D=30, C=5, G=6, stage=1)
    yield Case("one group", T=4, D=257, C=4, G=1)
    yield Case("a group each", T=4, D=19, C=3, G=19)
    yield Case("cancelling coefficients", T=5, D=64, C=2, G=4, base=1.0, own=-1.0)
    yield Case("annihilating", T=6, D=64, C=4, G=4, x=alternating(2.0), base=1.0, own=0.0)
    yield Case("binades", T=5, D=64, C=3, G=8, x=wide(-60, 60))
    yield Case("subnormal", T=5, D=64, C=3, G=8, x=subnormal())
    specials = sprinkled(normal(), [np.nan, np.inf, -0.0], 0.02)
    yield Case("special", T=5, D=64, C=3, G=8, x=specials)
    yield Case("published", T=8, D=5120, C=2, G=320, level="full")
