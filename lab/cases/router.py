"""Inputs for the router: ties, scores one float32 apart, both ends of softplus, ids of nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    constant,
    extreme,
    ids,
    normal,
    sprinkled,
    subnormal,
    uniform,
    values,
)

_MODEL: dict[str, Any] = dict(E=256, A=6, scale=1.5)


def _neighbours(around: float) -> Fill:
    """Values within 60 float32 spacings of one: their scores tie, or lie one spacing apart."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        step = float(np.spacing(np.float32(abs(around))))
        return np.asarray(around + rng.integers(-60, 61, shape) * step)

    return values(make)


def _few_values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 3, shape) * 0.5


def expert_rows(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Rows of distinct expert ids, in no order."""
    every = np.tile(np.arange(s.E), (shape[0], 1))
    return rng.permuted(every, axis=1)[:, : shape[1]].astype(np.int64)


def stray_rows(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """The same with a third of the rows naming an expert that is none: masked, one off, huge.

    2^32 + 3 would be a good id if it were cut to 32 bits.
    """
    table = expert_rows(rng, shape, fmt, s)
    rows = np.flatnonzero(rng.random(shape[0]) < 0.35)
    bad = rng.choice([-1, int(s.E), 2**32 + 3, -(2**63), 2**63 - 1], rows.size)
    table[rows, rng.integers(0, shape[1], rows.size)] = bad
    return table


def stray_tokens(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Token ids of which a third are in no table."""
    inside = rng.integers(0, s.V, shape)
    outside = rng.choice([-1, int(s.V), 2**31 - 1, -(2**31)], shape)
    return np.where(rng.random(shape) < 0.35, outside, inside).astype(np.int32)


@cases_for("router")
def router_cases() -> Iterator[Case]:
    """Numbers of experts around the warp and the block, and every kind of tie."""
    biased = normal(0.3)
    yield Case("one", T=1, E=1, A=1, scale=1.0)
    yield Case("all chosen", T=3, E=5, A=5, scale=1.5, bias=biased)
    yield Case("tail", T=7, E=257, A=7, scale=1.5, bias=biased)
    yield Case("tiny", T=5, E=8, A=2, scale=1.5, bias=biased)
    yield Case("pruned", T=3, E=160, A=6, scale=1.5, bias=biased)
    yield Case("larger model", T=2, E=384, A=6, scale=2.5, bias=biased)
    yield Case("most", T=2, E=1024, A=32, scale=2.5, bias=biased)
    yield Case("known", T=1, E=5, A=2, scale=1.5, raw=_known_raw(), bias=_known_bias())
    yield Case("equal", T=2, **_MODEL, raw=0.75, bias=-3.0)
    yield Case("ties", T=9, **_MODEL, raw=values(_few_values), bias=values(_few_values))
    yield Case("subnormal", T=3, **_MODEL, raw=subnormal(), bias=0.0)
    for name, around in (("one", 1.0), ("the threshold", 20.0), ("minus thirty", -30.0)):
        yield Case(f"neighbours of {name}", T=9, **_MODEL, raw=_neighbours(around), bias=0.0)
    yield Case("large bias", T=5, **_MODEL, bias=uniform(9, 27))
    yield Case("bias decides", T=5, **_MODEL, raw=-300.0, bias=biased)
    yield Case("hundreds", T=9, **_MODEL, raw=uniform(-100, 100), bias=0.0)
    yield Case("underflow", T=9, **_MODEL, raw=uniform(-215, -165), bias=0.0)
    yield Case("all zero", T=3, **_MODEL, raw=-1000.0, bias=biased)
    yield Case("extreme", T=3, **_MODEL, raw=extreme(), bias=biased)
    yield Case("infinite", T=5, **_MODEL, raw=sprinkled(normal(), [np.inf, -np.inf]), bias=biased)
    yield Case("nan", T=9, **_MODEL, raw=sprinkled(normal(), [np.nan]), bias=biased)
    yield Case("mostly nan", T=5, **_MODEL, raw=sprinkled(constant(np.nan), [1.0], 0.01), bias=0.0)
    yield Case("minus inf before nan", T=5, E=8, A=6, scale=1.0, raw=normal(), bias=_hopeless())
    yield Case("decode", T=1, **_MODEL, bias=biased)
    yield Case("verify", T=6, **_MODEL, bias=biased)
    yield Case("prefill", T=2048, **_MODEL, bias=biased, level="full")
    yield Case("many rows", T=65536 + 3, E=8, A=2, scale=1.5, bias=biased, level="full")


@cases_for("router_hash")
def router_hash_cases() -> Iterator[Case]:
    """Table rows of the model's size, and rows and tokens that name nothing."""
    rows: dict[str, Any] = dict(table=expert_rows, tokens=ids("V"))
    yield Case("one", T=1, E=1, A=1, V=1, scale=1.0, **rows)
    yield Case("tail", T=7, E=257, A=7, V=33, scale=1.5, **rows)
    yield Case("tiny", T=5, E=8, A=2, V=512, scale=1.5, **rows)
    yield Case("most", T=2, E=1024, A=32, V=5, scale=2.5, **rows)
    yield Case("hundreds", T=9, V=64, **_MODEL, raw=uniform(-100, 100), **rows)
    yield Case("underflow", T=9, V=64, **_MODEL, raw=uniform(-215, -165), **rows)
    yield Case("all zero", T=3, V=64, **_MODEL, raw=-1000.0, **rows)
    yield Case("subnormal", T=3, V=64, **_MODEL, raw=subnormal(), **rows)
    yield Case("extreme", T=3, V=64, **_MODEL, raw=extreme(), **rows)
    yield Case("nan", T=9, V=64, **_MODEL, raw=sprinkled(normal(), [np.nan]), **rows)
    yield Case("repeated expert", T=3, V=4, E=8, A=6, scale=1.5, table=ids("E"), tokens=ids("V"))
    yield Case("stray experts", T=40, V=64, **_MODEL, table=stray_rows, tokens=ids("V"))
    yield Case("stray tokens", T=40, V=64, **_MODEL, table=expert_rows, tokens=stray_tokens)
    yield Case("decode", T=1, V=2048, **_MODEL, **rows)
    yield Case("verify", T=6, V=2048, **_MODEL, **rows)
    yield Case("prefill", T=2048, V=129280, **_MODEL, **rows, level="full")
    yield Case("many rows", T=65536 + 3, E=8, A=2, V=512, scale=1.5, **rows, check=False)


def _known_raw() -> np.ndarray:
    return np.array([[0.5, -1, 2, 25, 0]], np.float32)


def _known_bias() -> np.ndarray:
    return np.array([0, 3.5, 0, -5, 0.9], np.float32)


def _hopeless() -> np.ndarray:
    """Two ordinary experts, then infinitely bad ones and NaN mixed: -inf still beats NaN."""
    return np.array([np.nan, -np.inf, 0, np.nan, -np.inf, 0.5, np.nan, -np.inf], np.float32)
