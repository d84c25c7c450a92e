"""Inputs for the dequantisers: every code under every scale, range ends, partial blocks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import bits_every, bytes_between, literal, normal, powers_of_two, wide
from lab.weights import Checkpoint, fp8_pair, mxfp4_pair, nvfp4_triple, weights_for

_EVERY_BYTE = bits_every(8)

# Times 1.5 this is half a float32 spacing below a bf16 tie whose even side is up: rounding to
# float32 first lands on the tie, and rounding that goes up although the product lies below.
_DOUBLE_ROUNDED = 1.0 + 152917 * 2.0**-23


def _every_code(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """All 256 bytes along each row, each row starting one further."""
    return ((np.arange(shape[1]) + np.arange(shape[0])[:, None]) % 256).astype(np.uint8)


def _asymmetric(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """A different byte in every block, so that swapped rows and columns show."""
    return (100 + 7 * np.arange(shape[0])[:, None] + np.arange(shape[1])).astype(np.uint8)


@cases_for("dequant_fp8_block")
def dequant_fp8_block_cases() -> Iterator[Case]:
    """Whole and partial blocks, every code, every scale byte."""
    yield Case("one", N=1, K=1, inexact=0)
    yield Case("block", N=128, K=128, inexact=0)
    yield Case("tail", N=129, K=127, inexact=0)
    yield Case("tail of 16", N=127, K=144, inexact=0)
    yield Case("asymmetric", N=300, K=650, scales=_asymmetric, inexact=0)
    yield Case("every code", N=130, K=272, codes=_every_code, inexact=41)
    yield Case("every scale", N=2, K=256 * 128, codes=_every_code, scales=_EVERY_BYTE, inexact=0)
    yield Case("byte 120", N=3, K=160, codes=_every_code, scales=2.0**-7, inexact=-7)
    yield Case("low end", N=128, K=256, codes=_every_code, scales=bytes_between(0, 4), inexact=0)
    yield Case("top end", N=9, K=640, codes=_every_code, scales=bytes_between(245, 256), inexact=0)
    yield Case("wkv", N=512, K=1024, inexact=0)
    yield Case("indexer wq_b", N=8192, K=1024, inexact=0, level="full")
    yield Case("shared down", N=4096, K=2048, inexact=0, level="full")


@cases_for("dequant_mxfp4")
def dequant_mxfp4_cases() -> Iterator[Case]:
    """Every pair of codes under every scale byte, a last partial block of threads."""
    ends = literal([2.0**-127, 2.0**-126, 2.0**125, 2.0**126, 2.0**127])
    yield Case("one group", N=1, K=32, inexact=0)
    yield Case("tail", N=7, K=2080, inexact=0)
    yield Case("every scale", N=256, K=512, codes=_every_code, scales=_EVERY_BYTE, inexact=0)
    yield Case("byte 120", N=2, K=512, codes=_every_code, scales=2.0**-7, inexact=3)
    yield Case("nibbles", N=3, K=64, codes=bytes_between(0x2B, 0x2C), scales=2.0**-6, inexact=0)
    yield Case("range ends", N=65, K=96, codes=_every_code, scales=ends, inexact=0)
    yield Case("half of w1", N=1024, K=1024, inexact=0)
    yield Case("w1", N=2048, K=4096, inexact=0, level="full")
    yield Case("w2", N=4096, K=2048, inexact=0, level="full")


@cases_for("dequant_nvfp4")
def dequant_nvfp4_cases() -> Iterator[Case]:
    """Second scales that are powers of two, and those that bf16 or even f32 has to round."""
    power, every = powers_of_two(-14, -8), _every_code
    yield Case("one group", N=1, K=16, scale2=power, inexact=0)
    yield Case("tail", N=7, K=2064, scale2=power, inexact=0)
    yield Case(
        "every scale", N=256, K=512, codes=every, scales=_EVERY_BYTE, scale2=power, inexact=0
    )
    yield Case("calibrated", N=64, K=512, codes=every, scale2=normal(1e-4), inexact=12)
    yield Case("double rounding", N=64, K=512, codes=every, scale2=_DOUBLE_ROUNDED, inexact=0)
    yield Case("bf16 ties", N=64, K=512, codes=every, scale2=1.0 + 2.0**-7, inexact=0)
    yield Case("subnormal", N=64, K=512, codes=every, scale2=1.77 * 2.0**-130, inexact=0)
    yield Case("underflow", N=64, K=512, codes=every, scale2=3 * 2.0**-149, inexact=0)
    yield Case("overflow", N=64, K=512, codes=every, scale2=1.3 * 2.0**120, inexact=0)
    yield Case("any scale2", N=16, K=256, scale2=wide(-149, 127), inexact=0)
    yield Case("infinite", N=4, K=64, scale2=np.inf, inexact=0)
    yield Case("nan", N=4, K=64, scale2=np.nan, inexact=0)
    yield Case("half of w1", N=1024, K=1024, scale2=power, inexact=0)
    yield Case("w1", N=2048, K=4096, scale2=power, inexact=0, level="full")
    yield Case("w2", N=4096, K=2048, scale2=normal(1e-4), inexact=0, level="full")


@cases_for("dequant_ue8m0")
def dequant_ue8m0_cases() -> Iterator[Case]:
    """Every byte."""
    yield Case("one", N=1)
    yield Case("every byte", N=257, codes=_EVERY_BYTE)
    yield Case("grid", N=8192)


@weights_for("dequant_fp8_block")
def _fp8_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    found = fp8_pair(checkpoint, name)
    if found is None:
        return None
    (n, k), (codes, scales) = found[0].shape, found
    return dict(N=n, K=k, codes=codes, scales=scales, inexact=0)


@weights_for("dequant_mxfp4")
def _mxfp4_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    found = mxfp4_pair(checkpoint, name)
    if found is None:
        return None
    (n, half), (codes, scales) = found[0].shape, found
    return dict(N=n, K=2 * half, codes=codes, scales=scales, inexact=0)


@weights_for("dequant_nvfp4")
def _nvfp4_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    found = nvfp4_triple(checkpoint, name)
    if found is None:
        return None
    (n, half), (codes, scales, scale2) = found[0].shape, found
    return dict(N=n, K=2 * half, codes=codes, scales=scales, scale2=scale2, inexact=0)


@weights_for("dequant_ue8m0")
def _ue8m0_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    if checkpoint.dtype(name) != "F8_E8M0":
        return None
    codes = checkpoint.tensor(name).bits.reshape(-1)
    return dict(N=codes.size, codes=codes)
