"""Inputs for the argmax: ties, signs of zero, infinities, NaN, the largest in every place."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import Fill, constant, extreme, normal, sprinkled, subnormal, values


def _few_values(count: int) -> Fill:
    """Integers of which every row holds many copies, the largest too."""
    return values(lambda rng, shape: rng.integers(0, count, shape).astype(float))


def _moving_peak(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Row t has its largest value at t: every position of the row wins once."""
    made = rng.uniform(-1.0, 1.0, shape)
    rows = np.arange(shape[0])
    made[rows, rows % shape[1]] = 2.0
    return made


@cases_for("argmax")
def argmax_cases() -> Iterator[Case]:
    """Widths around the block and the vector, and every kind of tie."""
    zeros = values(lambda rng, shape: rng.choice([0.0, -0.0], shape))
    low = [-np.inf, np.nan]
    yield Case("one", T=1, V=1)
    yield Case("tail", T=3, V=1025)
    yield Case("narrow", T=7, V=5)
    yield Case("odd", T=5, V=4099)
    yield Case("every place", T=70, V=67, x=values(_moving_peak))
    yield Case("ties", T=9, V=1025, x=_few_values(3))
    yield Case("equal", T=2, V=4100, x=-7.5)
    yield Case("signs of zero", T=9, V=33, x=zeros)
    yield Case("all minus inf", T=2, V=1030, x=-np.inf)
    yield Case("all nan", T=2, V=1030, x=np.nan)
    yield Case("nan before minus inf", T=40, V=9, x=values(lambda rng, s: rng.choice(low, s)))
    yield Case("special", T=6, V=2050, x=sprinkled(normal(), [np.nan, np.inf, -np.inf], 0.01))
    yield Case("mostly nan", T=6, V=2050, x=sprinkled(constant(np.nan), [-3.0]))
    yield Case("subnormal", T=4, V=1027, x=subnormal())
    yield Case("extreme", T=4, V=1027, x=extreme())
    yield Case("shard", T=2, V=16160)
    yield Case("vocabulary", T=1, V=129280, level="full")
    yield Case("verify", T=6, V=129280, level="full")
