"""The router: many tokens against single ones, by score and from the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import sprinkled, uniform
from lab.twins import Trial
from lab.twins.contents import Rng, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

# Sizes and scale of the model's router.
_EXPERTS, _ACTIVE, _SCALE = 256, 6, 1.5


def _ties(rng: Rng, T: int, E: int) -> np.ndarray:
    """Scores of which every row has many equal to its largest."""
    return rng.integers(-2, 2, (T, E)).astype(np.float32)


def _scored(T: int, E: int, A: int, *, tied: bool = False, special: bool = False) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        raw = _ties(rng, T, E) if tied else f32(rng, (T, E), uniform(-30, 30))
        bias = np.zeros(E, np.float32) if tied else f32(rng, (E,), uniform(9, 27))
        if special:
            raw = f32(rng, (T, E), sprinkled(uniform(-250, 100), [np.nan, np.inf, -np.inf], 0.1))
        return dict(raw=raw, bias=bias, A=A, scale=_SCALE)

    return make


def _hashed(T: int, E: int, A: int, *, V: int = 50, stray: bool = False) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        low = -2 if stray else 0
        return dict(
            raw=f32(rng, (T, E), uniform(-30, 30)),
            table=rng.integers(low, E + (2 if stray else 0), (V, A)),
            tokens=rng.integers(low, V + (2 if stray else 0), T).astype(np.int32),
            scale=_SCALE,
        )

    return make


_SCORED = (
    Trial("verify", _scored(6, _EXPERTS, _ACTIVE)),
    Trial("ties", _scored(8, _EXPERTS, _ACTIVE, tied=True)),
    Trial("odd sizes", _scored(3, 37, 5)),
    Trial("every expert", _scored(4, 8, 8, tied=True)),
    Trial("NaN and infinities", _scored(7, 70, _ACTIVE, special=True)),
    Trial("prompt", _scored(256, _EXPERTS, _ACTIVE), "full"),
)
_HASHED = (
    Trial("verify", _hashed(6, _EXPERTS, _ACTIVE)),
    Trial("odd sizes", _hashed(3, 37, 5)),
    Trial("ids that name nobody", _hashed(9, 19, 4, stray=True)),
    Trial("prompt", _hashed(256, _EXPERTS, _ACTIVE, V=1000), "full"),
)

TWINS = (
    rows_alone("router", axis="T", trials=_SCORED),
    rows_alone("router_hash", axis="T", trials=_HASHED),
)
