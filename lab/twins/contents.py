"""Contents of a trial's arrays, as stored bits."""

from __future__ import annotations

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import BF16, E4M3, F32, Format
from lab.cases.fills import Fill, finite_e4m3, normal

Rng = np.random.Generator
Size = tuple[int, ...]


def filled(fill: Fill, rng: Rng, shape: Size, fmt: Format) -> np.ndarray:
    """An array made by one of the cases' fills."""
    return fill(rng, shape, fmt, Shape({}))


def bf16(rng: Rng, shape: Size, fill: Fill | None = None) -> np.ndarray:
    """bf16 numbers, standard normal unless a fill says otherwise."""
    return filled(fill or normal(), rng, shape, BF16)


def f32(rng: Rng, shape: Size, fill: Fill | None = None) -> np.ndarray:
    """f32 numbers, standard normal unless a fill says otherwise."""
    return filled(fill or normal(), rng, shape, F32)


def e4m3(rng: Rng, shape: Size) -> np.ndarray:
    """Every E4M3 code but the two NaNs, each equally often."""
    return filled(finite_e4m3(), rng, shape, E4M3)


def powers_of_two(rng: Rng, shape: Size, low: int, high: int) -> np.ndarray:
    """f32 scales 2^k with k from [low, high]."""
    return np.ldexp(1.0, rng.integers(low, high + 1, shape)).astype(np.float32)


def repeated_rows(rows: np.ndarray) -> np.ndarray:
    """The same rows with every second one replaced by the one before it."""
    return np.ascontiguousarray(rows[np.arange(len(rows)) // 2 * 2])
