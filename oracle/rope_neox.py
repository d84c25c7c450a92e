"""Rotary embedding of lane pairs half a rotary width apart, with and without YaRN."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats


@dataclass(frozen=True, slots=True)
class Yarn:
    """Context extension: factor, original context length, and the two turning counts."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float


def rope_neox(x: Floats, table: Floats, positions: npt.NDArray[np.int64]) -> Bounded:
    """x with the first R lanes of every head rotated in pairs (j, j + R/2).

    Shapes: x [T,H,K], table [P,R] of R/2 cosines then R/2 sines, positions [T] -> [T,H,K].
    Rounds: nothing. A position outside 0..P-1 gives NaN in the rotated lanes.
    Magnitude: |a cos| + |b sin| where the lane is rotated, 0 where it stays as it is.
    """
    half = table.shape[1] // 2
    outside = (positions < 0) | (positions >= len(table))
    rows = table[np.where(outside, 0, positions)]
    rows[outside] = np.nan
    c, s = rows[:, None, :half], rows[:, None, half:]
    a, b = x[..., :half], x[..., half : 2 * half]
    y, magnitude = x.copy(), np.zeros_like(x)
    y[..., :half], y[..., half : 2 * half] = a * c - b * s, b * c + a * s
    magnitude[..., :half] = np.abs(a * c) + np.abs(b * s)
    magnitude[..., half : 2 * half] = np.abs(b * c) + np.abs(a * s)
    return Bounded(y, magnitude)


def neox_table(count: int, width: int, base: float, yarn: Yarn | None = None) -> Floats:
    """Cosines and sines of positions 0..count-1, [count, width]; YaRN's gain is inside them.

    Rounds: nothing, except the divisors and the gain of YaRN, which are stored in float32.
    """
    speeds = base ** (-2.0 * np.arange(width // 2) / width)
    gain = 1.0
    if yarn is not None:
        speeds = speeds / yarn_divisors(width, base, yarn)
        gain = float(np.float32(0.1 * math.log(yarn.factor) + 1.0))
    angles = np.arange(count)[:, None] * speeds
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * gain


def yarn_divisors(width: int, base: float, yarn: Yarn) -> Floats:
    """By how much each pair turns slower: 1 for fast pairs, the factor for slow ones.

    Rounds: to float32, once.
    """

    def turning(times: float) -> float:
        return width * math.log(yarn.original / (2 * math.pi * times)) / (2 * math.log(base))

    low = max(math.floor(turning(yarn.beta_fast)), 0)
    high = min(math.ceil(turning(yarn.beta_slow)), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - ramp) + ramp / yarn.factor)).astype(np.float32).astype(np.float64)
