"""Inputs for indexer scores: quantised and free values, signs at the clamp, unseen blocks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, extreme, normal, sprinkled, subnormal, values, wide

WSCALE = 128.0**-0.5 * 64.0**-0.5
_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def counts(*numbers: int) -> Fill:
    """These counts of visible blocks, repeated or cut to the shape."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return np.resize(np.asarray(numbers), shape).astype(fmt.storage)

    return fill


def _quantised(low: int, high: int) -> Fill:
    """What FP4 quantisation leaves: eight magnitudes times a power of two for each 32 columns."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        groups = (*shape[:-1], -(-shape[-1] // 32))
        powers = np.ldexp(1.0, rng.integers(low, high + 1, groups)).repeat(32, -1)
        signed = rng.choice([-1.0, 1.0], shape) * rng.choice(_GRID, shape)
        return np.asarray(signed * powers[..., : shape[-1]])

    return values(make)


def _aligned(sign: float) -> Fill:
    """Every row the same, times a sign: products that are all positive or all negative."""
    return values(lambda rng, shape: sign * np.broadcast_to(1 + rng.random(shape[-1]), shape))


@cases_for("indexer_score")
def indexer_cases() -> Iterator[Case]:
    """One query and many, every tile of keys, all the model's sizes."""
    yield _case("one", T=1, H=1, K=4, N=1)
    yield _case("tail", T=3, H=5, K=12, N=17)
    yield _case("odd heads", T=2, H=33, K=68, N=33)
    yield _case("more heads than a tile", T=2, H=65, K=132, N=15)
    yield _case("many heads", T=1, H=131, K=64, N=9)
    yield _case("columns of two tiles", T=2, H=8, K=124, N=40)
    yield from _common()


@cases_for("indexer_score_f32")
def indexer_f32_cases() -> Iterator[Case]:
    """The same, of the sizes that tensor cores take here."""
    yield _case("one", T=1, H=1, K=8, N=1)
    yield _case("tail", T=3, H=5, K=24, N=17)
    yield _case("odd heads", T=2, H=33, K=72, N=33)
    yield _case("a head more than sixteen", T=2, H=17, K=40, N=35)
    yield _case("many heads", T=1, H=128, K=64, N=9)
    yield _case("odd chunks", T=2, H=8, K=120, N=40)
    yield _case("several turns", T=135, H=3, K=8, N=700)
    yield from _common()


def _case(name: str, **content: Any) -> Case:
    return Case(name, **{"wscale": WSCALE, "visible": counts(2**31 - 1), **content})


def _common() -> Iterator[Case]:
    case = _case
    yield case("many blocks of 8", T=66, H=3, K=8, N=129)
    yield case("many blocks of 4", T=33, H=3, K=8, N=129)
    yield case("quantised", T=2, H=64, K=128, N=100, q=_quantised(-3, 1), keys=_quantised(-3, 1))
    visible = counts(-1, 0, 1, 2, 15, 16, 17, 40, 41, -(2**31))
    yield case("hidden", T=10, H=4, K=16, N=41, visible=visible)
    yield case("nothing shown", T=2, H=4, K=16, N=41, visible=0)
    yield case("negative products", T=2, H=9, K=16, N=20, q=_aligned(-1), keys=_aligned(1))
    yield case("positive products", T=2, H=9, K=16, N=20, q=_aligned(1), keys=_aligned(1))
    yield case("negative weights", T=2, H=9, K=16, N=20, weights=-0.5)
    yield case("weights cancel", T=2, H=64, K=16, N=20, q=_aligned(1), weights=alternating(1, 1e-6))
    yield case("products cancel", T=2, H=9, K=128, N=20, q=alternating(1.0), keys=normal(1e-3, 1))
    yield case("zeros", T=2, H=9, K=16, N=20, q=0.0, weights=-1.0)
    yield case("ties", T=2, H=9, K=16, N=20, keys=_aligned(1))
    yield case("binades", T=2, H=9, K=16, N=20, q=wide(-60, 40), keys=wide(-60, 40))
    yield case("subnormal", T=2, H=9, K=16, N=20, keys=subnormal())
    yield case("subnormal twice", T=2, H=9, K=16, N=20, keys=subnormal(), q=subnormal())
    yield case("extreme", T=2, H=9, K=16, N=20, keys=extreme(), q=normal(1e-3))
    specials = sprinkled(normal(), [np.nan, np.inf, -np.inf], 0.002)
    yield case("special keys", T=3, H=9, K=16, N=60, keys=specials)
    yield case("special queries", T=9, H=4, K=16, N=20, q=specials)
    yield case("special weights", T=9, H=4, K=16, N=20, weights=sprinkled(normal(), [np.nan], 0.1))
    hidden = counts(7)
    yield case("special hidden keys", T=2, H=4, K=16, N=20, keys=specials, visible=hidden)
    model: dict[str, Any] = {"H": 64, "K": 128, "q": _quantised(-3, 1), "keys": _quantised(-3, 1)}
    yield case("decode", T=1, N=513, **model)
    yield case("verify", T=6, N=200, visible=counts(171, 171, 172, 172, 172, 172), **model)
    yield case("decode 4096", T=1, N=4096, level="full", **model)
    yield case("decode 32768", T=1, N=32768, level="full", **model)
    yield case("decode 262144", T=1, N=262144, level="stress", **model)
    yield case("capacity", T=1, N=32768, visible=counts(500), level="full", **model)
    yield case("prefill", T=256, N=64, level="full", **model)
