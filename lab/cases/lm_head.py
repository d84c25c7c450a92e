"""Inputs for the head: vocabularies around a block, ties, NaN, sums that annihilate."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    alternating,
    constant,
    extreme,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    values,
    wide,
)
from lab.weights import Checkpoint, bf16_matrix, weights_for

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0], 0.01)


def _shapes() -> Iterator[dict[str, Any]]:
    """Rows of x of every count, rows of w around a block, D around a step and a batch of steps."""
    yield dict(name="smallest", T=1, V=1, D=8)
    for rows in range(1, 9):
        yield dict(name="rows", T=rows, V=37, D=264)
    yield dict(name="tail", T=7, V=131, D=1288)
    yield dict(name="more than eight rows", T=19, V=67, D=520)
    yield dict(name="below a step", T=3, V=515, D=248)
    yield dict(name="tiny model", T=2, V=512, D=256)


@cases_for("lm_head", "lm_head_f32")
def lm_head_cases() -> Iterator[Case]:
    """Random logits, then every way in which a sum goes wrong."""
    for shape in _shapes():
        yield Case(**shape)
    yield Case("cancel", T=3, V=67, D=1024, x=alternating(1.0), w=normal(2.0**-8, mean=1.0))
    yield Case("one huge", T=3, V=67, D=1032, x=one_huge(2.0**40))
    yield Case("binades", T=3, V=67, D=1032, x=wide(-40, 40), w=wide(-40, 40))
    yield Case("subnormal", T=3, V=67, D=520, x=subnormal())
    yield Case("underflow", T=3, V=67, D=520, x=wide(-80, -70), w=wide(-80, -70))
    yield Case("large", T=3, V=67, D=264, x=extreme(2.0**-16), w=normal())
    yield Case("special", T=40, V=67, D=264, x=_SPECIAL)
    yield Case("special weights", T=3, V=515, D=264, w=_SPECIAL)
    yield Case("hidden", T=1, V=1000, D=4096)
    yield Case("shard", T=1, V=16160, D=4096, level="full")
    yield Case("shard, verify", T=6, V=16160, D=4096, level="full")
    yield Case("vocabulary", T=1, V=129280, D=4096, level="stress")


def _whole(limit: int, unit: float) -> Fill:
    """Small multiples of a power of two: every sum is exact, so equal logits are equal bits."""
    return values(lambda rng, shape: rng.integers(-limit, limit + 1, shape) * unit)


def _few_rows(count: int) -> Fill:
    """A matrix of few different rows, each of them many times: every logit has many equals."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows = rng.integers(-3, 4, (count, shape[1]))
        return rows[rng.integers(0, count, shape[0])] * 0.25

    return values(make)


def _nan_rows(share: float) -> Fill:
    """Whole numbers with whole rows of NaN, the first among them."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = rng.integers(-3, 4, shape).astype(float)
        made[rng.random(shape[0]) < share] = np.nan
        made[0] = np.nan
        return made

    return values(make)


@cases_for("lm_head_argmax")
def lm_head_argmax_cases() -> Iterator[Case]:
    """Logits that are exact in float32, so that no rounding decides which is the largest."""
    whole: dict[str, Any] = dict(x=_whole(8, 0.5), w=_whole(15, 2.0**-6), keys=0, ticket=0)
    for shape in _shapes():
        yield Case(**shape, **whole)
    yield Case("ties", T=9, V=515, D=264, **{**whole, "w": _few_rows(3)})
    yield Case("equal", T=3, V=515, D=264, **{**whole, "w": 0.5})
    yield Case("zeros", T=3, V=515, D=264, **{**whole, "x": values(_signed_zeros)})
    yield Case("nan rows", T=9, V=515, D=264, **{**whole, "w": _nan_rows(0.5)})
    yield Case("all nan", T=3, V=131, D=264, **{**whole, "w": np.nan})
    yield Case("infinite", T=5, V=131, D=264, **{**whole, "x": sprinkled(constant(1.0), [np.inf])})
    yield Case("all minus inf", T=2, V=131, D=264, **{**whole, "x": -np.inf, "w": 1.0})
    yield Case("subnormal", T=3, V=67, D=520, **{**whole, "x": _whole(8, 2.0**-140)})
    yield Case("large", T=3, V=67, D=264, **{**whole, "x": _whole(8, 2.0**100)})
    yield Case("random", T=3, V=515, D=1032, keys=0, ticket=0)
    yield Case("shard", T=1, V=16160, D=4096, level="full", **whole)
    yield Case("shard, verify", T=6, V=16160, D=4096, level="full", **whole)
    yield Case("vocabulary", T=1, V=129280, D=4096, level="stress", **whole)


def _signed_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([0.0, -0.0], shape)


@weights_for("lm_head", "lm_head_f32")
def _head_weight(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    w = bf16_matrix(checkpoint, name) if name == "head.weight" else None
    return None if w is None else dict(T=3, V=w.shape[0], D=w.shape[1], w=w)
