"""Inputs for the casts."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import extreme, literal, normal, sprinkled, subnormal, values, wide


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    # Every other value lies exactly between two bf16: bit 15 of the float set, the rest clear.
    bits = (rng.integers(0x0080, 0x7F00, shape).astype(np.uint32) << 16) | 0x8000
    return bits.view(np.float32).astype(np.float64)


@cases_for("cast_bf16")
def cast_bf16_cases() -> Iterator[Case]:
    """Rows of activations and every kind of float."""
    yield Case("one", N=1)
    yield Case("tail", N=257)
    yield Case("hidden", N=4096)
    yield Case("ties", N=1000, x=values(_ties))
    yield Case("subnormal", N=513, x=subnormal())
    yield Case("binades", N=5000, x=wide(-149, 127))
    yield Case("extreme", N=300, x=extreme())
    yield Case("special", N=777, x=sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0]))
    yield Case("signs of zero", N=9, x=literal([0.0, -0.0]))
    yield Case("prefill", N=2048 * 4096, level="full")
