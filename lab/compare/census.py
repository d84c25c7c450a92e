"""Counts of special elements, and elements that the kernel never wrote.

Poison. Before a launch each output is filled with one repeated byte, and before the next launch
with another. What holds the first pattern after the first launch and the second pattern after the
second was never written. One pattern alone cannot say so, because an output may equal it:

| byte | f64 f32 f16 bf16 | e4m3 | e2m1 | ue8m0 | integers |
|---|---|---|---|---|---|
| 0xFF | NaN | NaN | -6 | NaN | -1, or the largest |
| 0xA5 | about -3e-16 (f16: -0.02, f64: -2e-127) | -0.203125 | 3, -1 | 2^38 | i32: -1515870811 |

A NaN is the best first pattern, since nothing that reads it stays quiet; for integers -1 is a
common value ("no id"), which is why the second pattern decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.compare.pair import Mask, Raw
from oracle.formats import FORMATS, Floats

POISON_BYTES = (0xFF, 0xA5)


@dataclass(frozen=True, slots=True)
class Census:
    """How many elements are special; saturated means the largest finite magnitude."""

    nan: int = 0
    plus_inf: int = 0
    minus_inf: int = 0
    subnormal: int = 0
    minus_zero: int = 0
    saturated: int = 0


def census(values: Floats, fmt: str) -> Census:
    """The census of decoded values; integers have only a largest value to report: nothing."""
    if fmt not in FORMATS:
        return Census()
    f = FORMATS[fmt]
    magnitude = np.abs(values)
    small = magnitude < f.min_normal
    return Census(
        nan=int(np.isnan(values).sum()),
        plus_inf=int((values == np.inf).sum()),
        minus_inf=int((values == -np.inf).sum()),
        subnormal=int((small & (magnitude > 0)).sum()) if fmt != "ue8m0" else 0,
        minus_zero=int(np.signbit(values[values == 0]).sum()),
        saturated=int((magnitude == f.max).sum()),
    )


def holds(bits: Raw, byte: int) -> Mask:
    """Which stored elements consist of this byte only."""
    raw = np.ascontiguousarray(bits).view(f"u{bits.dtype.itemsize}")
    pattern = np.full(bits.dtype.itemsize, byte, np.uint8).view(raw.dtype)[0]
    return np.asarray(raw == pattern)


def unwritten(got: Raw, again: Raw, poison: tuple[int, int] = POISON_BYTES) -> Mask:
    """Which stored elements were never written: poison in two launches with different poison."""
    return holds(got, poison[0]) & holds(again, poison[1])
