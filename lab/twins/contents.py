"""Contents of a trial's arrays, as stored bits."""

from __future__ import annotations

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import BF16, F32, Format
from lab.cases.fills import Fill

Rng = np.random.Generator
Size = tuple[int, ...]


def filled(fill: Fill, rng: Rng, shape: Size, fmt: Format) -> np.ndarray:
    """An array made by one of the cases' fills."""
    return fill(rng, shape, fmt, Shape({}))


def bf16(rng: Rng, shape: Size, fill: Fill | None = None) -> np.ndarray:
    """bf16 numbers: of either sign and 2^-7 to 2 in magnitude, unless a fill says otherwise."""
    if fill is not None:
        return filled(fill, rng, shape, BF16)
    # Straight from bits: a full-size matrix of weights is made in no time.
    raw = rng.integers(0, 2**16, shape, dtype=np.uint16)
    return (raw & 0x83FF) + np.uint16(120 << 7)


def f32(rng: Rng, shape: Size, fill: Fill | None = None) -> np.ndarray:
    """f32 numbers, spread like `bf16` with all bits of the mantissa."""
    if fill is not None:
        return filled(fill, rng, shape, F32)
    raw = rng.integers(0, 2**32, shape, dtype=np.uint32)
    return ((raw & 0x83FFFFFF) + np.uint32(120 << 23)).view(np.float32)


def e4m3(rng: Rng, shape: Size) -> np.ndarray:
    """Every E4M3 code but the two NaNs, about equally often."""
    raw = rng.integers(0, 2**8, shape, dtype=np.uint8)
    raw[(raw & 0x7F) == 0x7F] ^= 0x40
    return raw


def powers_of_two(rng: Rng, shape: Size, low: int, high: int) -> np.ndarray:
    """f32 scales 2^k with k from [low, high]."""
    return np.ldexp(1.0, rng.integers(low, high + 1, shape)).astype(np.float32)


def repeated_rows(rows: np.ndarray) -> np.ndarray:
    """The same rows with every second one replaced by the one before it."""
    return np.ascontiguousarray(rows[np.arange(len(rows)) // 2 * 2])


def upper_halves(numbers: np.ndarray) -> np.ndarray:
    """f32 numbers as bf16: the same ones where eight leading bits hold them, otherwise cut off."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def bf16_as_f32(bits: np.ndarray) -> np.ndarray:
    """The same numbers in f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
