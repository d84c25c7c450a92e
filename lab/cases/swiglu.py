"""Inputs for the activation: both sides of the clamps, gates far below zero, ends of the range."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import extreme, literal, normal, sprinkled, subnormal, uniform, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, 0.0, -0.0], 0.1)


def _common(weights: Mapping[str, Any]) -> Iterator[Case]:
    limit = 10.0
    yield Case("one", T=1, D=1, limit=limit, **weights)
    yield Case("tail", T=3, D=257, limit=limit, **weights)
    known: dict[str, Any] = dict(gate=literal([12, -12, 3]), up=literal([11, -11, 2]))
    yield Case("known", T=1, D=3, limit=limit, **known, **weights)
    both: dict[str, Any] = dict(gate=uniform(-50, 50), up=uniform(-50, 50))
    yield Case("clamped", T=5, D=1000, limit=limit, **both, **weights)
    yield Case("not clamped", T=5, D=1000, limit=0.0, **both, **weights)
    yield Case("negative limit", T=2, D=300, limit=-1.0, **both, **weights)
    yield Case("tiny limit", T=2, D=300, limit=0.5, **both, **weights)
    yield Case("on the limit", T=2, D=300, limit=2.0, gate=2.0, up=-2.0, **weights)
    yield Case("subnormal results", T=4, D=1000, limit=limit, gate=uniform(-115, -80), **weights)
    yield Case("gate -100", T=1, D=64, limit=limit, gate=-100.0, up=1.0, **weights)
    far: dict[str, Any] = dict(gate=uniform(-210, -150), up=wide(100, 127))
    yield Case("far gate, huge up", T=4, D=1000, limit=0.0, **far, **weights)
    tiny: dict[str, Any] = dict(gate=wide(-149, -100), up=wide(60, 127))
    yield Case("tiny gate, huge up", T=4, D=1000, limit=0.0, **tiny, **weights)
    every: dict[str, Any] = dict(gate=wide(-149, 127), up=wide(-149, 127))
    yield Case("binades", T=8, D=2500, limit=0.0, **every, **weights)
    yield Case("subnormal", T=4, D=515, limit=limit, gate=subnormal(), **weights)
    yield Case("subnormal up", T=4, D=515, limit=limit, up=subnormal(), **weights)
    yield Case("extreme", T=4, D=515, limit=limit, gate=extreme(), up=extreme(), **weights)
    yield Case("overflow", T=4, D=515, limit=0.0, gate=extreme(), up=extreme(), **weights)
    yield Case("special", T=4, D=515, limit=limit, gate=_SPECIAL, up=_SPECIAL, **weights)
    yield Case("special, no clamp", T=4, D=515, limit=0.0, gate=_SPECIAL, up=_SPECIAL, **weights)
    yield Case("prefill", T=2048, D=2048, limit=limit, level="full", **weights)


@cases_for("swiglu")
def swiglu_cases() -> Iterator[Case]:
    """The shared expert, which has no weight."""
    yield from _common({})
    yield Case("shared expert", T=6, D=2048, limit=10.0)


@cases_for("swiglu_weighted")
def swiglu_weighted_cases() -> Iterator[Case]:
    """Routed experts: six slots of a token."""
    yield from _common(dict(weights=uniform(0.01, 1.5)))
    yield Case("routed experts", T=36, D=2048, limit=10.0, weights=uniform(0.01, 1.5))
    rescued: dict[str, Any] = dict(gate=uniform(-110, -90), weights=wide(60, 120))
    yield Case("huge weight", T=8, D=600, limit=10.0, **rescued)
    yield Case("weight of zero", T=2, D=300, limit=10.0, weights=0.0)
    yield Case("special weight", T=9, D=64, limit=10.0, weights=_SPECIAL)
