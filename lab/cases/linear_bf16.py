"""Inputs for products with bf16 weights."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    extreme,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    values,
    wide,
)
from lab.weights import Checkpoint, bf16_matrix, weights_for


def _equal_pairs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.repeat(rng.standard_normal((shape[0], shape[1] // 2)), 2, axis=1)


def _nearly_opposite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    first = np.exp2(rng.uniform(-6.0, 6.0, (shape[0], shape[1] // 2)))
    second = -first * (1.0 + 2.0**-6 * rng.standard_normal(first.shape))
    return np.stack([first, second], axis=-1).reshape(shape)


NEARLY_OPPOSITE = values(_nearly_opposite)
"""Pairs that cancel against equal weights but for a rest, over twelve binades."""


@cases_for("linear_bf16")
def linear_bf16_cases() -> Iterator[Case]:
    """Every row count, sizes off every multiple, sums that cancel, and the ends of bf16."""
    yield Case("smallest", M=1, N=1, K=16)
    for rows in range(1, 9):
        check = rows in (1, 3, 8)
        pad = {"x": 8, "y": 3}
        yield Case("rows", M=rows, N=37, K=1040, pad=pad, check=check)
    yield Case("four rows a warp", M=3, N=2051, K=16)
    yield Case("four rows and two parts", M=3, N=2050, K=528)
    yield Case("tail of a step", M=3, N=9, K=528)
    yield Case("one part has less", M=2, N=5, K=1536 + 16)
    yield Case("two groups a part", M=2, N=7, K=2304)
    yield Case("two passes", M=2, N=8200, K=16)
    yield Case("cancel", M=3, N=33, K=528, w=values(_equal_pairs), x=NEARLY_OPPOSITE)
    yield Case("huge among small", M=2, N=17, K=1040, x=one_huge(2.0**15))
    yield Case("binades", M=3, N=20, K=256, w=wide(-30, 30), x=wide(-30, 30))
    yield Case("subnormal", M=2, N=19, K=144, w=subnormal(), x=normal(1e3))
    yield Case("products underflow", M=2, N=19, K=144, w=wide(-126, -60), x=wide(-90, -60))
    yield Case("extreme", M=1, N=8, K=16, w=extreme(2.0**-64), x=extreme(2.0**-72))
    specials = sprinkled(normal(), [np.nan, np.inf, -np.inf], 0.001)
    yield Case("special", M=3, N=21, K=272, x=specials)
    yield Case("wkv", M=1, N=512, K=4096)
    yield Case("wq_a", M=2, N=1024, K=4096)
    yield Case("weights_proj", M=1, N=64, K=4096)
    for rows in (1, 4, 8):
        yield Case("wq_b", M=rows, N=32768, K=1024, level="full")
        yield Case("wo_b", M=rows, N=4096, K=8192, level="full")
        yield Case("indexer wq_b", M=rows, N=8192, K=1024, level="full")
        yield Case("shared gate", M=rows, N=2048, K=4096, level="full")


@cases_for("linear_bf16_grouped")
def linear_bf16_grouped_cases() -> Iterator[Case]:
    """Groups of one tile and of many, one group, columns off every multiple."""
    yield Case("smallest", M=1, N=8, K=16, group=8)
    yield Case("three groups", M=3, N=72, K=272, group=24, pad={"x": 8, "y": 3})
    yield Case("one group", M=2, N=32, K=144, group=32)
    yield Case("four tiles", M=8, N=128, K=400, group=32, check=True)
    yield Case("cancel", M=3, N=64, K=528, group=16, w=values(_equal_pairs), x=NEARLY_OPPOSITE)
    for rows in (1, 8):
        yield Case("wo_a", M=rows, N=8192, K=4096, group=1024, level="full")


@weights_for("linear_bf16")
def _bf16_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    w = bf16_matrix(checkpoint, name)
    if w is None or w.shape[1] % 16:
        return None
    return dict(M=3, N=w.shape[0], K=w.shape[1], w=w)
