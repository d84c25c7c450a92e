"""Inputs for products with FP8 weights."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    bytes_between,
    extreme,
    literal,
    normal,
    one_huge,
    powers_of_two,
    sprinkled,
    wide,
)
from lab.cases.linear_bf16 import NEARLY_OPPOSITE
from lab.weights import Checkpoint, fp8_pair, weights_for
from oracle.formats import decode

# What the official release holds: powers of two, most weights well below 1.
_RELEASE = powers_of_two(-12, -5)


def _every_finite_code(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    codes = np.arange(256, dtype=np.uint8)
    return np.resize(codes[(codes & 0x7F) != 0x7F], shape)


def _equal_pairs(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    return np.repeat(rng.integers(0, 0x7F, (shape[0], shape[1] // 2), np.uint8), 2, axis=1)


@cases_for("linear_fp8")
def linear_fp8_cases() -> Iterator[Case]:
    """Every row count, every code, scales of every kind, sizes off every multiple."""
    yield Case("smallest", M=1, N=1, K=16, scales=_RELEASE)
    for rows in range(1, 9):
        check = rows in (1, 3, 8)
        pad = {"x": 8, "y": 3}
        yield Case("rows", M=rows, N=37, K=1040, scales=_RELEASE, pad=pad, check=check)
    yield Case("four rows a warp", M=3, N=2051, K=16, scales=_RELEASE)
    yield Case("four rows and two parts", M=3, N=2050, K=528, scales=_RELEASE)
    yield Case("tail of a step", M=3, N=9, K=528, scales=_RELEASE)
    yield Case("one part has less", M=2, N=5, K=1536 + 16, scales=_RELEASE)
    yield Case("two groups a part", M=2, N=7, K=2304, scales=_RELEASE)
    yield Case("two passes", M=2, N=8200, K=16, scales=_RELEASE)
    # 130 rows and 144 columns: the second block of scales has two rows, or 16 columns.
    yield Case("distinct scales", M=3, N=130, K=144, scales=literal([2.0**-3, 8.0, 0.5, 64.0]))
    yield Case("scales with mantissa bits", M=3, N=130, K=272, scales=literal([1.75, 0.3, 1.1]))
    yield Case("all codes", M=2, N=129, K=256, codes=_every_finite_code, scales=_RELEASE)
    yield Case("scales at both ends", M=2, N=257, K=384, scales=powers_of_two(-20, 3))
    yield Case("scales far apart", M=1, N=129, K=256, scales=literal([2.0**-60, 2.0**40]))
    yield Case("scale of zero", M=1, N=3, K=256, scales=literal([0.0, 1.0]))
    yield Case("NaN codes", M=1, N=150, K=16, codes=bytes_between(0, 256), scales=1.0)
    yield Case("cancel", M=3, N=33, K=528, codes=_equal_pairs, scales=0.25, x=NEARLY_OPPOSITE)
    yield Case("huge among small", M=2, N=17, K=1040, scales=_RELEASE, x=one_huge(2.0**15))
    yield Case("binades", M=3, N=20, K=256, scales=_RELEASE, x=wide(-30, 30))
    yield Case("products underflow", M=2, N=19, K=144, scales=2.0**-20, x=wide(-126, -100))
    yield Case("extreme", M=1, N=8, K=16, scales=1.0, x=extreme(2.0**-14))
    yield Case(
        "special",
        M=3,
        N=21,
        K=272,
        scales=_RELEASE,
        x=sprinkled(normal(), [np.nan, np.inf, -np.inf], 0.001),
    )
    yield Case("wkv", M=1, N=512, K=4096, scales=_RELEASE)
    yield Case("wq_a", M=2, N=1024, K=4096, scales=_RELEASE)
    for rows in (1, 4, 8):
        yield Case("wq_b", M=rows, N=32768, K=1024, scales=_RELEASE, level="full")
        yield Case("wo_b", M=rows, N=4096, K=8192, scales=_RELEASE, level="full")
        yield Case("wo_a group", M=rows, N=1024, K=4096, scales=_RELEASE, level="full")
        yield Case("indexer wq_b", M=rows, N=8192, K=1024, scales=_RELEASE, level="full")
        yield Case("shared gate", M=rows, N=2048, K=4096, scales=_RELEASE, level="full")
        yield Case("shared down", M=rows, N=4096, K=2048, scales=_RELEASE, level="full")


@cases_for("linear_fp8_grouped", "linear_fp8_grouped_bf16")
def linear_fp8_grouped_cases() -> Iterator[Case]:
    """Groups inside a block of scales and over several, columns off every multiple."""
    yield Case("smallest", M=1, N=8, K=16, group=8, scales=_RELEASE)
    yield Case("three groups", M=3, N=72, K=272, group=24, scales=_RELEASE, pad={"x": 8, "y": 3})
    yield Case("one group", M=2, N=32, K=144, group=32, scales=_RELEASE)
    yield Case("four tiles", M=8, N=256, K=400, group=128, scales=_RELEASE, check=True)
    yield Case("scales with mantissa bits", M=3, N=64, K=272, group=16, scales=literal([1.75, 0.3]))
    for rows in (1, 4, 8):
        yield Case("wo_a", M=rows, N=8192, K=4096, group=1024, scales=_RELEASE, level="full")


@weights_for("linear_fp8")
def _fp8_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    found = fp8_pair(checkpoint, name)
    if found is None:
        return None
    (n, k), (codes, scales) = found[0].shape, found
    return dict(M=3, N=n, K=k, codes=codes, scales=decode(scales, "ue8m0").astype(np.float32))
