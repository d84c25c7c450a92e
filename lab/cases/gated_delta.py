"""Inputs for the pieces of a gated DeltaNet layer."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    alternating,
    extreme,
    normal,
    sprinkled,
    subnormal,
    uniform,
    values,
    wide,
)

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -0.0], 0.02)


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape)
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True)))


@cases_for("gated_delta_conv")
def conv_cases() -> Iterator[Case]:
    """Fewer rows than taps, channels around a block, inputs that silu closes."""
    yield Case("smallest", T=1, D=1, C=2)
    yield Case("fewer rows than taps", T=2, D=33, C=4)
    yield Case("off the block", T=6, D=257, C=4)
    yield Case("annihilating", T=5, D=64, C=4, u=1.0, w=alternating(1.0), state=1.0)
    yield Case("closed", T=3, D=64, C=2, u=normal(1.0, mean=-90.0), w=1.0)
    yield Case("binades", T=3, D=64, C=3, u=wide(-60, 10))
    yield Case("subnormal", T=3, D=64, C=3, u=subnormal(), state=subnormal())
    yield Case("special", T=3, D=64, C=3, u=_SPECIAL)
    yield Case("published", T=8, D=10240, C=4, level="full")


@cases_for("gated_delta_tail")
def tail_cases() -> Iterator[Case]:
    """Fewer rows than the tail is long, as many, and more."""
    for rows in (1, 2, 3, 9):
        yield Case("rows", T=rows, D=259, taps=4)
    yield Case("smallest", T=1, D=1, taps=2)
    yield Case("special", T=2, D=40, taps=4, u=_SPECIAL)


@cases_for("gated_delta_unit")
def unit_cases() -> Iterator[Case]:
    """Heads around a warp, rows apart, nothing to normalise."""
    more: dict[str, Any] = dict(gain=0.25, eps=1e-6)
    yield Case("smallest", T=1, G=1, K=1, **more)
    yield Case("off the warp", T=3, G=5, K=33, **more)
    yield Case("strided rows", T=3, G=2, K=128, pad=dict(x=96), **more)
    yield Case("zeros", T=2, G=2, K=16, x=0.0, **more)
    yield Case("binades", T=3, G=2, K=64, x=wide(-60, 30), **more)
    yield Case("subnormal", T=2, G=2, K=64, x=subnormal(), **more)
    yield Case("extreme", T=2, G=2, K=64, x=extreme(2.0**-70), **more)
    yield Case("special", T=4, G=2, K=40, x=_SPECIAL, **more)


@cases_for("gated_delta_decay")
def decay_cases() -> Iterator[Case]:
    """Every side of softplus and sigmoid, heads around a block."""
    logs: dict[str, Any] = dict(a_log=uniform(-3.0, 3.0))
    yield Case("smallest", T=1, H=1, **logs)
    yield Case("off the block", T=7, H=37, **logs)
    yield Case("far out", T=4, H=32, a=normal(60.0), b=normal(60.0), **logs)
    yield Case("next to nothing", T=4, H=32, a=normal(1e-6, mean=-30.0), **logs)
    yield Case("binades", T=4, H=32, a=wide(-40, 7), b=wide(-40, 7), **logs)
    yield Case("special", T=4, H=32, a=_SPECIAL, b=_SPECIAL, **logs)


@cases_for("gated_delta_scan")
def scan_cases() -> Iterator[Case]:
    """Columns around a block of warps, keys around a warp, heads that share keys."""
    parts: dict[str, Any] = dict(
        k=values(_unit), q=values(_unit), factor=uniform(0.2, 1.0), beta=uniform(0.0, 1.0)
    )
    yield Case("smallest", T=1, G=1, H=1, D=1, K=1, **parts)
    yield Case("one step", T=1, G=2, H=4, D=6, K=32, **parts)
    yield Case("shared keys", T=5, G=2, H=6, D=9, K=33, **parts)
    yield Case("odd heads", T=2, G=3, H=9, D=5, K=17, **parts)
    yield Case("published width", T=4, G=1, H=2, D=16, K=128, **parts)
    yield Case("strided rows", T=3, G=1, H=2, D=5, K=16, pad=dict(v=7), **parts)
    yield Case("nothing kept", T=3, G=1, H=2, D=5, K=16, **{**parts, "factor": 0.0})
    yield Case("nothing learnt", T=3, G=1, H=2, D=5, K=16, **{**parts, "beta": 0.0})
    yield Case("subnormal state", T=2, G=1, H=1, D=5, K=16, v=0.0, state=subnormal(), **parts)
    yield Case("special", T=3, G=1, H=2, D=5, K=16, v=_SPECIAL, **parts)
    yield Case("verify", T=8, G=16, H=48, D=128, K=128, level="full", **parts)
