"""Inputs for the rotary embedding."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.rope_table import Yarn, rope_table
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    extreme,
    ids,
    literal,
    normal,
    sprinkled,
    subnormal,
    values,
    wide,
)

_YARN = Yarn(original_length=65536, factor=16.0)


def angles(theta: float, yarn: Yarn | None = None, first: int = 0) -> Fill:
    """The real table, P positions from `first` on."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return rope_table(shape[0], shape[1], theta, yarn, first=first)

    return fill


_PLAIN, _STRETCHED = angles(10000.0), angles(160000.0, _YARN)


def _same_angle(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    # Both lanes of a pair equal: at 45 degrees a cos - b sin cancels to rounding noise.
    return np.repeat(rng.standard_normal((*shape[:-1], shape[-1] // 2)), 2, axis=-1)


def _powers_of_two_and_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    # Where the spacing changes, a bound of half a spacing would let a wrong neighbour pass.
    powers = np.exp2(rng.integers(-149, 127, shape).astype(np.float64))
    powers[rng.random(shape) < 0.2] = 0.0
    return np.copysign(powers, rng.uniform(-1.0, 1.0, shape))


def _case(name: str, **content: Any) -> Case:
    """A few rows of small heads over the plain table, unless the content says otherwise."""
    usual = dict(T=3, H=2, K=72, R=64, P=50, table=_PLAIN, positions=ids("P"))
    return Case(name, **{**usual, **content})


@cases_for("rope")
def rope_cases() -> Iterator[Case]:
    """Both directions, every width of head, positions of every kind, the ends of f32."""
    yield _case("smallest", T=1, H=1, K=2, R=2, P=1)
    yield _case("all lanes turn", K=6, R=6, P=9)
    yield _case("odd head", T=5, H=3, K=71, R=10, P=33)
    for inverse in (0, 1):
        yield _case(f"query {inverse}", T=1, H=64, K=512, P=200, inverse=inverse)
    yield _case("kv rows", T=7, H=1, K=512, P=300, table=_STRETCHED)
    yield _case("strided rows", K=70, P=20, pad={"x": 58})
    for position in (1, 4095, 131071):
        two_rows = angles(160000.0, _YARN, position - 1)
        yield _case(f"position {position}", T=2, K=128, P=2, table=two_rows, positions=1)
    at_45_degrees = dict(table=np.sqrt(0.5), positions=0, x=values(_same_angle))
    yield _case("cancel", T=4, H=3, K=64, P=1, **at_45_degrees)
    outside = literal([0, -1, 5, 4, 2**31 - 1, -(2**31), 1, 6])
    yield _case("outside the table", T=8, K=66, P=5, positions=outside)
    yield _case("kept lanes", R=2, x=values(_powers_of_two_and_zeros))
    yield _case("binades", x=wide(-100, 100))
    yield _case("subnormal", x=subnormal())
    yield _case("extreme", x=extreme(0.5))
    yield _case("special", x=sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0], 0.02))
    yield _case("prefill", T=256, H=64, K=512, P=256, table=_STRETCHED, level="full")
