"""Activation quantisers: FP8 per n lanes and FP4 per 32, with power-of-two scales.

For each contiguous group of lanes of a row: the largest magnitude, floored, picks the smallest
power of two s with amax <= largest * s; codes are x / s rounded to nearest-even. The division is
exact, so there is exactly one rounding, and code * s is exact in bf16.

The floor of FP8 is the kernels' float32 constant 1e-4. float32 and float64 1e-4 differ, but no
scale depends on it: both lie in (448 * 2^-23, 448 * 2^-22], so either gives s = 2^-22.
"""

import numpy as np
import numpy.typing as npt

from oracle.blocks import Bytes, Exponents, smallest_exponent
from oracle.formats import FORMATS, Floats, decode, encode

FP8_FLOOR = float(np.float32(1e-4))
FP4_FLOOR = 6.0 * 2.0**-126
Codes = tuple[Bytes, Exponents]


def quantise_fp8(x: npt.ArrayLike, group: int, *, canonical_zero: bool = False) -> Codes:
    """The (e4m3 codes, int32 exponents) of x, one exponent k per group: x ~ code * 2^k.

    Shapes: x [..,K] -> codes [..,K], exponents [..,ceil(K/group)]; the last group may be partial.
    Rounds: once, to e4m3. A negative value that rounds to zero keeps its sign (code 0x80), unless
    canonical_zero asks for 0x00.
    Errors: ValueError when x holds NaN or infinity: the rule defines no scale for them.
    Source: act_quant of the published reference; group 128 for linear inputs, 64 for KV lanes.
    """
    return _quantise(x, group, "e4m3", FP8_FLOOR, canonical_zero)


def quantise_fp4(x: npt.ArrayLike, group: int = 32, *, canonical_zero: bool = False) -> Codes:
    """The (e2m1 codes, one per byte, int32 exponents) of x; shapes and errors as `quantise_fp8`.

    Rounds: once, to e2m1. A negative zero keeps its sign (code 8) unless canonical_zero.
    Source: fp4_act_quant of the published reference; indexer queries and keys.
    """
    return _quantise(x, group, "e2m1", FP4_FLOOR, canonical_zero)


def dequantise(codes: npt.ArrayLike, exponents: npt.ArrayLike, group: int, fmt: str) -> Floats:
    """The values code * 2^k of quantised groups; fmt is "e4m3" or "e2m1"."""
    values = decode(codes, fmt)
    return np.asarray(np.ldexp(values, _spread(np.asarray(exponents), group, values.shape[-1])))


def fake_quantise_fp8(x: npt.ArrayLike, group: int, *, clamp_only: bool = False) -> Floats:
    """The values of x after FP8 quantise and dequantise.

    With clamp_only the rounding is left out, as in one circulating variant of the KV quantiser;
    under power-of-two scales the clamp never bites and x comes back unchanged.
    """
    if clamp_only:
        return _clamp(x, group, "e4m3", FP8_FLOOR)
    return dequantise(*quantise_fp8(x, group), group, "e4m3")


def fake_quantise_fp4(x: npt.ArrayLike, group: int = 32, *, clamp_only: bool = False) -> Floats:
    """The values of x after FP4 quantise and dequantise; clamp_only as in `fake_quantise_fp8`."""
    if clamp_only:
        return _clamp(x, group, "e2m1", FP4_FLOOR)
    return dequantise(*quantise_fp4(x, group), group, "e2m1")


def _quantise(x: npt.ArrayLike, group: int, fmt: str, floor: float, canonical_zero: bool) -> Codes:
    x = np.asarray(x, np.float64)
    k = _exponents(x, group, fmt, floor)
    codes = encode(np.ldexp(x, -_spread(k, group, x.shape[-1])), fmt).astype(np.uint8)
    if canonical_zero:
        codes[codes == 1 << (FORMATS[fmt].bits - 1)] = 0
    return codes, k


def _exponents(x: Floats, group: int, fmt: str, floor: float) -> Exponents:
    starts = np.arange(0, x.shape[-1], group)
    amax = np.maximum(np.maximum.reduceat(np.abs(x), starts, axis=-1), floor)
    return smallest_exponent(amax, FORMATS[fmt].max)


def _clamp(x: npt.ArrayLike, group: int, fmt: str, floor: float) -> Floats:
    x = np.asarray(x, np.float64)
    k = _spread(_exponents(x, group, fmt, floor), group, x.shape[-1])
    limit = np.ldexp(FORMATS[fmt].max, k)
    return np.asarray(np.clip(x, -limit, limit))


def _spread(per_group: npt.NDArray[np.generic], group: int, width: int) -> Exponents:
    return np.asarray(per_group.repeat(group, -1)[..., :width], np.int32)
