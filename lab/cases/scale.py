"""Inputs for factors on rows: the series and the quotient, saturation, ends of f32."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import extreme, normal, sprinkled, subnormal, uniform, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0], 0.05)


@cases_for("scale_softcap")
def softcap_cases() -> Iterator[Case]:
    """Around the change of formula, far beyond the cap, and without one."""
    yield Case("smallest", T=1, D=1, factor=1.0, cap=4.0)
    yield Case("off the block", T=3, D=257, factor=1.7, cap=4.0)
    yield Case("around the series", T=2, D=600, factor=1.0, cap=1.0, x=uniform(-0.011, 0.011))
    yield Case("saturated", T=2, D=70, factor=1.0, cap=20.0, x=normal(1e4))
    yield Case("binades", T=2, D=300, factor=0.196116, cap=20.0, x=wide(-100, 100))
    yield Case("no cap", T=2, D=300, factor=1.5, cap=0.0, x=wide(-60, 60))
    yield Case("subnormal", T=2, D=300, factor=0.5, cap=20.0, x=subnormal())
    yield Case("extreme", T=1, D=40, factor=1.0, cap=30.0, x=extreme())
    yield Case("special", T=2, D=90, factor=1.0, cap=30.0, x=_SPECIAL)


@cases_for("scale_gate")
def gate_cases() -> Iterator[Case]:
    """Gates of every size, rows apart."""
    yield Case("smallest", T=1, D=1)
    yield Case("off the block", T=3, D=257)
    yield Case("strided rows", T=3, D=64, pad=dict(gate=64))
    yield Case("gates of many sizes", T=2, D=300, gate=wide(-20, 10))
    yield Case("nearly closed", T=2, D=300, gate=uniform(-110.0, -80.0))
    yield Case("subnormal", T=2, D=90, x=subnormal())
    yield Case("extreme", T=1, D=40, x=extreme(), gate=extreme())
    yield Case("special", T=2, D=90, x=_SPECIAL, gate=_SPECIAL)
