"""Inputs for scores with their selection: exact ones, so that the one right list is known."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.kernels.indexer_select import LIST
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, sprinkled, values
from lab.cases.indexer import counts

_ALL = counts(2**31 - 1)
_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def grid(spread: int = 0, *, twelfths: int = 8) -> Fill:
    """FP4 numbers times a power of two for each 32 columns, so small that no sum of them rounds.

    twelfths: how many of the eight magnitudes occur; fewer make more ties.
    """

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        groups = (*shape[:-1], -(-shape[-1] // 32))
        powers = np.ldexp(1.0, rng.integers(0, spread + 1, groups) - 6).repeat(32, -1)
        signed = rng.choice([-1.0, 1.0], shape) * rng.choice(_GRID[:twelfths], shape)
        return np.asarray(signed * powers[..., : shape[-1]])

    return values(make)


def _whole(limit: int) -> Fill:
    """Whole numbers, of either sign."""
    return values(lambda rng, shape: rng.integers(-limit, limit + 1, shape).astype(np.float64))


@cases_for("indexer_select")
def indexer_select_cases() -> Iterator[Case]:
    """Ties of every share, every way to narrow scores down, one block of a row and many."""

    def case(name: str, **content: Any) -> Case:
        usual: dict[str, Any] = {
            "visible": _ALL,
            "offset": 0,
            "wscale": 2.0**-4,
            "bins": 0,
            "list": 0,
            "tickets": 0,
            "L": LIST,
            "q": grid(),
            "keys": grid(),
            "weights": _whole(3),
        }
        return Case(name, **{**usual, **content})

    yield case("one", T=1, H=1, K=16, N=1, S=1)
    yield case("tail", T=3, H=5, K=48, N=37, S=5, offset=128, pad={"ids": 7})
    yield case("more places than keys", T=2, H=9, K=32, N=5, S=9)
    yield case("heads beyond 32", T=2, H=33, K=32, N=70, S=20)
    yield case("all heads", T=2, H=64, K=128, N=140, S=64, weights=_whole(1))
    yield case("several blocks", T=2, H=4, K=64, N=700, S=100, check=True)
    yield case("odd width", T=2, H=5, K=40, N=150, S=40)
    yield case("whole numbers", T=2, H=5, K=32, N=150, S=40, q=_whole(3), keys=_whole(5))
    yield case("numbers between", T=2, H=5, K=32, N=300, S=40, keys=sprinkled(
        grid(), [0.3125], 0.002))  # fmt: skip
    yield case("powers apart", T=2, H=5, K=128, N=150, S=40, keys=grid(4), weights=_whole(1))
    yield case("zero queries", T=2, H=5, K=32, N=150, S=40, q=0.0)
    yield case("zero keys", T=2, H=5, K=32, N=150, S=40, keys=0.0)
    lengths = counts(-1, 0, 1, 39, 40, 41, 127, 128, 129, 300, 301, -(2**31))
    yield case("lengths", T=12, H=2, K=16, N=300, S=40, visible=lengths)
    yield case("ties", T=2, H=2, K=16, N=900, S=64, keys=grid(twelfths=2))
    yield case("equal", T=1, H=2, K=16, N=900, S=64, weights=0.0)
    yield case("more equal than can wait", T=1, H=2, K=16, N=3000, S=64, weights=0.0)
    yield case("narrowed down", T=1, H=16, K=64, N=3000, S=16, wscale=1.0)
    yield case("one block", T=3, H=3, K=16, N=600, S=300, visible=counts(512, 299, 513))
    yield case("shared out thinly", T=2, H=3, K=16, N=1300, S=30, visible=counts(513, 1290))
    yield case("listed", T=2, H=16, K=64, N=3000, S=64, L=512, check=True)
    yield case("listed, ties", T=1, H=2, K=16, N=2000, S=64, L=900, keys=grid(twelfths=2))
    yield case("list too short", T=2, H=16, K=64, N=2600, S=64, L=70)
    yield case("own list too short", T=1, H=2, K=16, N=3000, S=20, L=1000, weights=0.0)
    yield case("listed or not", T=3, H=3, K=16, N=1500, S=40, L=400, visible=counts(800, 801, 1500))
    yield case("negative", T=2, H=9, K=32, N=300, S=64, weights=-1.0)
    nan = sprinkled(grid(), [np.nan], 0.001)
    yield case("nan keys", T=2, H=3, K=16, N=200, S=60, keys=nan)
    yield case("infinite keys", T=1, H=3, K=16, N=90, S=60, keys=sprinkled(grid(), [np.inf], 0.001))
    yield case("nan query", T=6, H=2, K=16, N=90, S=60, q=sprinkled(grid(), [np.nan], 0.02))
    model: dict[str, Any] = {"H": 64, "K": 128, "S": 512, "weights": _whole(1), "offset": 128}
    yield case("decode", T=1, N=1100, visible=counts(1050), **model)
    yield case("verify", T=6, N=600, visible=counts(511, 512, 512, 513, 513, 513), **model)
    yield case("decode 32768", T=1, N=32768, level="full", **model)
    yield case("verify 32768", T=6, N=32768, level="full", **model)
    yield case("capacity", T=1, N=262144, visible=counts(700), level="full", **model)
    yield case("longest", T=1, N=262144, level="full", **model)
