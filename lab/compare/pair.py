"""One output beside its reference, decoded and measured once; every metric reads from here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsv4.errors import SpecError
from oracle.blocks import unpack_e2m1
from oracle.formats import FORMATS, Floats, decode, encode, spacing

Mask = npt.NDArray[np.bool_]
Raw = npt.NDArray[np.generic]

INTEGERS = {"u8": np.uint8, "u32": np.uint32, "i32": np.int32, "i64": np.int64}
_SATURATING = ("e4m3", "e2m1")


@dataclass(frozen=True, slots=True)
class Pair:
    """An output and its reference, element by element.

    fmt: the element format; a packed e2m1x2 output arrives here as e2m1 with twice the columns,
    and packed says how many elements share a byte.
    got_bits, ref_bits: stored codes (ref_bits is the reference rounded once to the format).
    got, ref, rounded: their values; ref is the unrounded reference, clamped where the format
    saturates, because a number beyond the largest has no nearer code. target is ref unclamped.
    differ: other bytes, where any two NaNs of a float format count as equal. finite: got and
    rounded both finite. error: got - ref where finite, else 0. step: the format's spacing at ref.
    """

    fmt: str
    axes: tuple[str, ...]
    packed: int
    got_bits: Raw
    ref_bits: Raw
    got: Floats
    ref: Floats
    rounded: Floats
    target: Floats
    differ: Mask
    finite: Mask
    error: Floats
    step: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in elements."""
        return self.got_bits.shape

    @property
    def size(self) -> int:
        """How many elements are compared."""
        return self.got_bits.size

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers, one apart and without NaN."""
        return self.fmt in INTEGERS

    @property
    def special(self) -> Mask:
        """Elements that break the law of specials: both NaN, the same infinity, or both finite."""
        both_nan = np.isnan(self.got) & np.isnan(self.rounded)
        return np.asarray(~self.finite & ~both_nan & (self.got != self.rounded))

    @property
    def real(self) -> Floats:
        """Distances from the unrounded reference in spacings of the format; 0 if not finite."""
        return np.abs(self.error) / self.step


def pair(got: Raw, ref: Raw, fmt: str, axes: tuple[str, ...]) -> Pair:
    """The output (stored bits) joined with its reference.

    ref is float64 values, or already stored codes (same type as got), or integers.
    Errors: SpecError when the two do not fit each other or the format.
    """
    packed = 1
    if fmt == "e2m1x2":
        stored_shape, packed, fmt = got.shape, 2, "e2m1"
        got = unpack_e2m1(got)
        ref = unpack_e2m1(ref) if ref.dtype == np.uint8 and ref.shape == stored_shape else ref
        axes = (*axes[:-1], _twice(axes[-1])) if axes else axes
    if got.shape != ref.shape or len(axes) != got.ndim:
        raise SpecError(
            f"compare {fmt}: got {list(got.shape)}, reference {list(ref.shape)},"
            f" axes {' '.join(axes)}\n  give the oracle's output the shape of the kernel's"
        )
    if fmt in INTEGERS:
        return _integers(got, ref, fmt, axes)
    if fmt not in FORMATS:
        raise SpecError(f"compare: no format {fmt!r}; known: {', '.join([*FORMATS, *INTEGERS])}")
    return _numbers(got, ref, fmt, axes, packed)


def _numbers(got: Raw, ref: Raw, fmt: str, axes: tuple[str, ...], packed: int) -> Pair:
    storage = FORMATS[fmt].storage
    if got.dtype != storage:
        raise SpecError(f"compare {fmt}: stored as {storage}, got {got.dtype}; view, do not cast")
    coded = ref.dtype == storage and fmt != "f64"
    target = decode(ref, fmt) if coded else ref.astype(np.float64, copy=False)
    ref_bits = ref if coded else encode(target, fmt)
    got_values, rounded = decode(got, fmt), decode(ref_bits, fmt)
    largest = FORMATS[fmt].max
    values = np.clip(target, -largest, largest) if fmt in _SATURATING else target
    bits = f"u{storage.itemsize}"
    differ = got.view(bits) != ref_bits.view(bits)
    finite = np.isfinite(got_values) & np.isfinite(rounded)
    if not finite.all():
        differ &= ~(np.isnan(got_values) & np.isnan(rounded))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(finite, got_values - values, 0.0)
    step = spacing(values, fmt)
    return Pair(
        fmt, axes, packed, got, ref_bits, got_values, values, rounded, target, differ, finite,
        error, np.where(finite, step, 1.0),
    )  # fmt: skip


def _integers(got: Raw, ref: Raw, fmt: str, axes: tuple[str, ...]) -> Pair:
    kind = INTEGERS[fmt]
    if got.dtype != kind:
        raise SpecError(f"compare {fmt}: stored as {np.dtype(kind)}, got {got.dtype}")
    with np.errstate(invalid="ignore"):
        stored = ref.astype(kind)
    if not np.array_equal(stored, ref):
        raise SpecError(f"compare {fmt}: the reference holds values that are no {fmt} numbers")
    values, rounded = got.astype(np.float64), stored.astype(np.float64)
    return Pair(
        fmt, axes, 1, got, stored, values, rounded, rounded, rounded, got != stored,
        np.ones(got.shape, np.bool_), values - rounded, np.ones(got.shape),
    )  # fmt: skip


def _twice(axis: str) -> str:
    return axis.removesuffix("/2") if axis.endswith("/2") else f"2*{axis}"
