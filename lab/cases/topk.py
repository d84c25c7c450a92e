"""Inputs for the ordered selection: ties of every share, counts around S, ends of every range."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, constant, literal, normal, sprinkled, subnormal, values, wide
from lab.cases.indexer import counts

_ALL = counts(2**31 - 1)


def _tied(share: float) -> Fill:
    """Normal scores of which that share is one and the same value, in random places."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.where(rng.random(shape) < share, 0.375, rng.standard_normal(shape))

    return values(make)


def _few_values(count: int) -> Fill:
    """Scores drawn from so many values."""
    return values(lambda rng, shape: np.asarray(rng.integers(0, count, shape), np.float64))


def _ramp(sign: int) -> Fill:
    """Ascending or descending along the row."""
    return values(lambda rng, shape: sign * np.broadcast_to(np.arange(shape[-1]), shape))


def _neighbours(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Values that differ in their last ten bits only: nothing to see in the first two digits."""
    bits = np.float32(1.5).view(np.uint32) + rng.integers(0, 1024, shape, np.uint32)
    return bits.astype(np.uint32).view(np.float32)


def _any_bits(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Random bits: every exponent, NaN and infinity among them."""
    return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)


@cases_for("topk")
def topk_cases() -> Iterator[Case]:
    """One place and many, a row and several, short rows and the longest."""

    def case(name: str, **content: Any) -> Case:
        return Case(name, **{"visible": _ALL, "offset": 0, **content})

    yield case("one", T=1, N=1, S=1)
    yield case("one of many", T=2, N=1000, S=1)
    yield case("tail", T=3, N=37, S=5, offset=128, pad={"ids": 7})
    yield case("more places than scores", T=2, N=5, S=9)
    for k in (8, 64):
        for n in sorted({k - 1, k, k + 1, 3 * k // 2, 2 * k - 1, 2 * k, 2 * k + 1}):
            yield case(f"{n} for {k}", T=1, N=n, S=k)
            yield case(f"{n} tied for {k}", T=1, N=n, S=k, score=_tied(0.9))
    for share in (0.75, 0.9, 0.99, 1.0):
        yield case(f"ties {share}", T=3, N=300, S=64, score=_tied(share))
    yield case("ties beyond a step", T=1, N=5000, S=300, score=_few_values(3))
    yield case("all equal beyond a step", T=1, N=5000, S=300, score=-1.0)
    yield case("ascending", T=1, N=1500, S=100, score=_ramp(1))
    yield case("descending", T=1, N=1500, S=100, score=_ramp(-1))
    yield case("last bits", T=2, N=3000, S=200, score=_neighbours)
    yield case("zeros of both signs", T=2, N=300, S=64, score=literal([0.0, -0.0, 0.0, 0.0, -0.0]))
    both = sprinkled(constant(-1e-30), [0.0, -0.0], 0.5)
    yield case("zeros among others", T=2, N=300, S=200, score=both)
    yield case(
        "lengths",
        T=12,
        N=100,
        S=20,
        visible=counts(-1, 0, 1, 19, 20, 21, 40, 41, 99, 100, 101, -(2**31)),
    )
    yield case("short lengths", T=4, N=3000, S=512, visible=counts(0, 1, 511, 512))
    low = sprinkled(normal(), [-np.inf], 0.6)
    yield case("minus infinity", T=3, N=100, S=70, score=low, visible=counts(100, 71, 70))
    yield case("only minus infinity", T=2, N=300, S=20, score=-np.inf)
    yield case("infinities", T=3, N=300, S=100, score=sprinkled(normal(), [np.inf, -np.inf], 0.5))
    yield case("nan", T=4, N=100, S=60, score=sprinkled(normal(), [np.nan], 0.5))
    yield case("nan that fit", T=2, N=50, S=60, score=sprinkled(normal(), [np.nan, -np.inf], 0.6))
    yield case("only nan", T=2, N=100, S=20, score=np.nan)
    yield case(
        "hidden nan", T=2, N=10, S=4, score=literal([1, 2, 3, 4, 5] + [np.nan] * 5), visible=5
    )
    yield case("any bits", T=4, N=2000, S=500, score=_any_bits)
    yield case("binades", T=2, N=500, S=100, score=wide(-149, 127))
    yield case("subnormal", T=2, N=500, S=100, score=subnormal())
    yield case("decode", T=1, N=4096, S=512, offset=128, visible=counts(4000))
    yield case(
        "verify", T=6, N=600, S=512, offset=128, visible=counts(511, 512, 512, 513, 513, 513)
    )
    yield case("many places", T=1, N=6000, S=2048)
    yield case("most places", T=1, N=9000, S=4096, level="full")
    yield case("thousand places", T=2, N=16384, S=1024, score=_tied(0.8), level="full")
    yield case("decode 32768", T=1, N=32768, S=512, offset=128, level="full")
    yield case("long", T=1, N=65537, S=512, level="full")
    yield case("longest", T=1, N=262144, S=512, level="full")
    yield case("longest, tied", T=1, N=262144, S=512, score=_few_values(40), level="full")
    yield case("capacity", T=1, N=262144, S=512, visible=counts(700), level="full")
    yield case("prefill", T=512, N=512, S=512, offset=2048, level="full")
