"""Inputs for the rotation of pairs half a rotary width apart."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import extreme, ids, normal, sprinkled, subnormal, values, wide


def _circle(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Cosines and sines of random angles."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        angles = rng.uniform(-np.pi, np.pi, (shape[0], shape[1] // 2))
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

    return values(make)(rng, shape, fmt, s)


def _stray(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    made = ids("P")(rng, shape, fmt, s)
    made[:: max(1, len(made) // 3)] = -1
    made[-1] = int(s["P"])
    return made


@cases_for("rope_neox")
def rope_neox_cases() -> Iterator[Case]:
    """Whole and partial rotations, row strides, positions outside the table, ends of f32."""
    seats: dict[str, Any] = dict(table=_circle, positions=ids("P"))
    yield Case("smallest", T=1, H=1, K=2, R=2, P=1, **seats)
    yield Case("off the block", T=3, H=5, K=22, R=18, P=7, **seats)
    yield Case("whole head", T=8, H=4, K=128, R=128, P=33, **seats)
    yield Case("quarter of a head", T=5, H=2, K=256, R=64, P=9, **seats)
    yield Case("strided rows", T=6, H=3, K=10, R=6, P=5, pad=dict(x=17), **seats)
    yield Case("stray", T=9, H=2, K=12, R=8, P=4, table=_circle, positions=_stray)
    yield Case("binades", T=4, H=2, K=32, R=32, P=6, x=wide(-60, 60), **seats)
    yield Case("subnormal", T=4, H=2, K=32, R=32, P=6, x=subnormal(), **seats)
    yield Case("extreme", T=2, H=2, K=16, R=16, P=3, x=extreme(0.25), **seats)
    specials = sprinkled(normal(), [np.nan, np.inf, -0.0], 0.05)
    yield Case("special", T=4, H=2, K=16, R=8, P=3, x=specials, **seats)
    yield Case("prefill", T=2048, H=32, K=128, R=128, P=4096, level="full", **seats)
