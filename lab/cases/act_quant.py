"""Inputs for the activation quantisers."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    extreme,
    literal,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    uniform,
    values,
    wide,
)

_SPECIALS = [np.nan, np.inf, -np.inf, -0.0, 0.0]


def _ties(grid: list[float], scale: float) -> Fill:
    """Values halfway between neighbours of a grid, with the largest in each group of 32."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        between = (np.array(grid[:-1]) + grid[1:]) / 2
        made = rng.choice(between, shape) * rng.choice([-1.0, 1.0], shape)
        made[..., ::32] = grid[-1]
        return np.asarray(made * scale)

    return values(make)


_E4M3 = sorted({m * 2.0**e for e in range(-9, 6) for m in range(8, 16)} | {448.0})
_FP8_TIES = _ties(_E4M3, 2.0**-8)
_FP4_TIES = _ties([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 0.25)

# Largest values on both sides of where the scale changes, in units of the float just above 1.
_EDGE = [1.75, np.nextafter(np.float32(1.75), np.float32(2)), 1.0, 1.5, 1.9999999]
_FP4_EDGE = [1.5, np.nextafter(np.float32(1.5), np.float32(2)), 1.0, 0.75, 1.9999999]


def _content() -> Iterator[tuple[str, Fill | float]]:
    yield "zeros", 0.0
    yield "tiny", normal(1e-6)
    yield "one huge", one_huge(3e4)
    yield "binades", wide(-40, 20)
    yield "subnormal", subnormal()
    yield "extreme", extreme()
    yield "near extreme", wide(100, 127)
    yield "special", sprinkled(normal(), _SPECIALS, 0.1)
    yield "only special", literal([np.nan, np.inf, -np.inf])
    yield "small positive", uniform(0.0, 1e-4)


@cases_for("act_quant_fp8_inplace")
def fp8_inplace_cases() -> Iterator[Case]:
    """Both groups, both roundings, prefixes that end inside a row, and every kind of float."""
    yield Case("smallest", T=1, S=64, prefix=64)
    yield Case("kv row", T=1, S=512, prefix=448)
    yield Case("kv rows", T=7, S=512, prefix=448)
    yield Case("prefix inside", T=3, S=333, prefix=192, pad={"x": 5})
    yield Case("group of 128", T=2, S=641, prefix=640, group=128)
    yield Case("clamp only", T=2, S=130, prefix=128, clamp_only=1, x=wide(-30, 30))
    for name, fill in _content():
        yield Case(name, T=3, S=200, prefix=192, x=fill)
    specials = literal([1.0, np.inf, -0.0, np.nan, -np.inf])
    yield Case("clamp special", T=3, S=192, prefix=192, clamp_only=1, x=specials)
    yield Case("clamp extreme", T=2, S=64, prefix=64, clamp_only=1, x=extreme())
    yield Case("ties", T=9, S=256, prefix=256, x=_FP8_TIES)
    yield Case("edges of a scale", T=5, S=64, prefix=64, x=_rows_of(_EDGE))
    yield Case("prefill", T=2048, S=512, prefix=448, level="full")


@cases_for("act_quant_fp8")
def fp8_cases() -> Iterator[Case]:
    """Both groups, rows that are not whole blocks, and every kind of float."""
    yield Case("smallest", T=1, K=128)
    yield Case("hidden", T=1, K=4096)
    yield Case("verify", T=6, K=2048, pad={"x": 3})
    yield Case("one group over a block", T=3, K=640)
    yield Case("group of 64", T=3, K=576, group=64)
    for name, fill in _content():
        yield Case(name, T=3, K=256, x=fill)
    yield Case("ties", T=9, K=256, x=_FP8_TIES)
    yield Case("edges of a scale", T=5, K=128, x=_rows_of(_EDGE))
    yield Case("prefill", T=2048, K=4096, level="full")


@cases_for("act_quant_fp4_inplace")
def fp4_cases() -> Iterator[Case]:
    """Rows that are not whole blocks, ties of every kind, and every kind of float."""
    yield Case("smallest", T=1, K=32)
    yield Case("queries", T=64, K=128)
    yield Case("one group over a block", T=5, K=160)
    for name, fill in _content():
        yield Case(name, T=3, K=96, x=fill)
    yield Case("ties", T=9, K=128, x=_FP4_TIES)
    yield Case("edges of a scale", T=5, K=32, x=_rows_of(_FP4_EDGE))
    yield Case("prefill", T=32768, K=128, level="full")


def _rows_of(largest: list[float]) -> Fill:
    """Rows whose largest magnitude is each of these in turn, at some power of two."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        top = np.resize(np.asarray(largest, np.float64), shape[0])[:, None]
        made = rng.uniform(-1.0, 1.0, shape) * top
        made[:, :1] = top
        return made * np.exp2(rng.integers(-8, 9, (shape[0], 1)))

    return values(make)
