"""Number formats: decode, encode, spacing and order of every scalar format, in float64.

A format is a lattice: a sign, then magnitudes counted upwards from zero. With m mantissa bits and
smallest normal exponent e0, lattice index i is q * 2^(e - m) with i = (e - e0) * 2^m + q, which
runs through subnormals, normals and the carry between binades without a special case. The magnitude
bits of a stored code *are* that index, so encode, decode and order are three views of one formula.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Raw = npt.NDArray[np.generic]

NAN_ORDER = int(np.iinfo(np.int64).min)
"""What `order` gives for a NaN: below every lattice index, so it can never pass for a neighbour."""


@dataclass(frozen=True, slots=True)
class Format:
    """One scalar format: how it is stored and which numbers it holds (largest finite: `max`)."""

    name: str
    storage: np.dtype[np.generic]
    bits: int
    mantissa: int
    min_exponent: int
    max: float
    has_inf: bool = False
    has_nan: bool = True

    @property
    def min_normal(self) -> float:
        """The smallest number with a full mantissa."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number; ue8m0 has no subnormals (and no zero): 2^-127."""
        return 2.0 ** (self.min_exponent - self.mantissa)

    @property
    def max_exponent(self) -> int:
        """The exponent of the topmost binade."""
        return int(np.frexp(self.max)[1]) - 1

    @property
    def top(self) -> int:
        """The last `order` that is not a NaN: infinity where there is one, else `max`."""
        if self.name == "ue8m0":
            return 254  # no zero and no subnormals: codes start at 2^-127
        index = (self.max_exponent - self.min_exponent) << self.mantissa
        return index + int(self.max / 2.0 ** (self.max_exponent - self.mantissa)) + self.has_inf


_U8 = np.dtype(np.uint8)
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f64", np.dtype(np.float64), 64, 52, -1022, float(np.finfo("f8").max), has_inf=True),
        Format("f32", np.dtype(np.float32), 32, 23, -126, float(np.finfo("f4").max), has_inf=True),
        Format("f16", np.dtype(np.uint16), 16, 10, -14, 65504.0, has_inf=True),
        Format("bf16", np.dtype(np.uint16), 16, 7, -126, 2.0**128 - 2.0**120, has_inf=True),
        Format("e4m3", _U8, 8, 3, -6, 448.0),
        Format("e2m1", _U8, 4, 1, 0, 6.0, has_nan=False),
        Format("ue8m0", _U8, 8, 0, -127, 2.0**127),
    )
}


def decode(raw: npt.ArrayLike, fmt: str) -> Floats:
    """The float64 values of stored codes; every code has one, and all conversions are exact.

    e4m3 0x7F and 0xFF, and ue8m0 0xFF, are NaN; ue8m0 0 is 2^-127, not zero.
    Errors: ValueError when raw is not stored as the format says, or holds e2m1 codes above 15.
    """
    f, bits = _bits(raw, fmt)
    with np.errstate(invalid="ignore"):  # a signalling NaN is still just a NaN
        if f.name in ("f64", "f32"):
            return np.asarray(raw).astype(np.float64)
        if f.name == "f16":
            return bits.view(np.float16).astype(np.float64)
        if f.name == "bf16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.asarray(_TABLES[f.name][bits])


def encode(x: npt.ArrayLike, fmt: str) -> Raw:
    """The codes of float64 values: one rounding, to nearest, ties to the even code.

    Rounds: subnormals and -0 are kept. e4m3 and e2m1 clamp to +-max before rounding (infinity
    too); f32, f16 and bf16 overflow to infinity as IEEE does; a NaN becomes a quiet NaN. ue8m0
    does not round at all: its values are scales, and cutting one to a power of two is a bug.
    Errors: ValueError for a NaN in e2m1, or a ue8m0 value that is not 2^-127 .. 2^127.
    """
    f, x = _format(fmt), np.asarray(x, np.float64)
    if f.name in ("f64", "f32"):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.asarray(x.astype(f.storage))
    if f.name == "ue8m0":
        return _encode_scales(x)
    nan = np.isnan(x)
    if nan.any() and not f.has_nan:
        raise ValueError(f"encode to {fmt}: {int(nan.sum())} NaN, and {fmt} has none; remove them")
    ceiling = 2.0 ** (f.max_exponent + 1) if f.has_inf else f.max
    magnitude = np.minimum(np.where(nan, 0.0, np.abs(x)), ceiling)
    binade = _binade(magnitude, f)
    index = np.rint(np.ldexp(magnitude, f.mantissa - binade)).astype(np.int64)
    index += (binade.astype(np.int64) - f.min_exponent) << f.mantissa
    index |= np.signbit(x).astype(np.int64) << (f.bits - 1)
    index = np.where(nan, f.top + (1 << (f.mantissa - 1) if f.has_inf else 1), index)
    return np.asarray(index.astype(f"u{f.storage.itemsize}").view(f.storage))


def round_to(x: npt.ArrayLike, fmt: str) -> Floats:
    """The float64 values nearest to x that the format can hold: decode(encode(x))."""
    return decode(encode(x, fmt), fmt)


def spacing(x: npt.ArrayLike, fmt: str) -> Floats:
    """The distance between neighbours of the format in the binade of |x|.

    At a power of two it is the spacing above, the larger one. Below the smallest normal it is the
    subnormal spacing; beyond `max` (infinity too) it is that of the topmost binade. NaN gives NaN.
    """
    f, x = _format(fmt), np.asarray(x, np.float64)
    nan = np.isnan(x)
    magnitude = np.minimum(np.where(nan, 0.0, np.abs(x)), f.max)
    return np.asarray(np.where(nan, np.nan, np.ldexp(1.0, _binade(magnitude, f) - f.mantissa)))


def order(raw: npt.ArrayLike, fmt: str) -> npt.NDArray[np.int64]:
    """Lattice indices: neighbours differ by 1, +0 and -0 are both 0, a NaN is `NAN_ORDER`."""
    f, bits = _bits(raw, fmt)
    index = bits.astype(np.int64)
    if f.name != "ue8m0":
        magnitude = index & ((1 << (f.bits - 1)) - 1)
        index = np.where(index == magnitude, magnitude, -magnitude)
    return np.where(np.abs(index) > f.top, NAN_ORDER, index)


def _encode_scales(x: Floats) -> Raw:
    code = np.where(np.isnan(x), 255, np.clip(np.frexp(x)[1] + 126, 0, 254)).astype(np.uint8)
    if not np.array_equal(_TABLES["ue8m0"][code], x, equal_nan=True):
        raise ValueError("encode to ue8m0: values that are not 2^-127 .. 2^127; choose them first")
    return code


def _format(fmt: str) -> Format:
    if fmt not in FORMATS:
        raise ValueError(f"format {fmt!r} is unknown; known: {', '.join(FORMATS)}")
    return FORMATS[fmt]


def _bits(raw: npt.ArrayLike, fmt: str) -> tuple[Format, npt.NDArray[np.unsignedinteger]]:
    f, raw = _format(fmt), np.asarray(raw)
    if raw.dtype != f.storage:
        raise ValueError(f"{fmt} is stored as {f.storage}, found {raw.dtype}; view it, do not cast")
    bits = raw.view(f"u{f.storage.itemsize}")
    if fmt == "e2m1" and bits.size and int(bits.max()) > 15:
        raise ValueError(f"e2m1 holds codes 0 to 15, found {int(bits.max())}; unpack e2m1x2 first")
    return f, bits


def _binade(magnitude: Floats, f: Format) -> npt.NDArray[np.int32]:
    # Subnormals and zero count as the lowest binade; frexp alone would call zero's exponent 0.
    return np.frexp(np.maximum(magnitude, f.min_normal))[1] - np.int32(1)


def _table(f: Format) -> Floats:
    code = np.arange(1 << f.bits)
    index = code & ((1 << (f.bits - 1)) - 1)
    above = np.maximum((index >> f.mantissa) - 1, 0)  # binades above the subnormals
    q = (index - (above << f.mantissa)).astype(np.float64)
    value = np.ldexp(q, above + f.min_exponent - f.mantissa)
    value[index > f.top] = np.nan
    return np.asarray(np.where(index == code, value, -value))


_TABLES = {name: _table(FORMATS[name]) for name in ("e4m3", "e2m1")}
_TABLES["ue8m0"] = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)
