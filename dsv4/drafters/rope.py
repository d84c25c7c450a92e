"""Tables of rotation angles for pairs half a rotary width apart, with and without YaRN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dsv4.drafters.config import Yarn


def neox_table(count: int, width: int, theta: float, yarn: Yarn | None = None) -> np.ndarray:
    """Cosines, then sines, of positions 0..count-1, [count, width] float32.

    Rounds: angles in float64; cosines and sines, times YaRN's gain, once to float32.
    """
    speeds = theta ** (-2.0 * np.arange(width // 2) / width)
    gain = 1.0
    if yarn is not None:
        speeds = speeds / yarn_divisors(width, theta, yarn)
        gain = yarn_gain(yarn)
    angles = np.arange(count)[:, None] * speeds
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * gain
    return np.asarray(table.astype(np.float32))


def yarn_divisors(width: int, theta: float, yarn: Yarn) -> np.ndarray:
    """By how much each pair turns slower, float32: 1 for fast pairs, the factor for slow ones."""
    low, high = yarn_range(yarn, width, theta)
    slow = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray((1.0 / ((1.0 - slow) + slow / yarn.factor)).astype(np.float32))


def yarn_gain(yarn: Yarn) -> float:
    """What rotated queries and keys are both multiplied by, a float32 number."""
    return float(np.float32(0.1 * math.log(yarn.factor) + 1.0))


def yarn_range(yarn: Yarn, width: int, theta: float) -> tuple[int, int]:
    """The pairs between which the divisor rises from 1 to the factor."""
    low = max(math.floor(turning_pair(yarn.beta_fast, yarn, width, theta)), 0)
    return low, min(math.ceil(turning_pair(yarn.beta_slow, yarn, width, theta)), width - 1)


def turning_pair(times: float, yarn: Yarn, width: int, theta: float) -> float:
    """The (fractional) pair that turns that many times over the original context."""
    return width * math.log(yarn.original / (2 * math.pi * times)) / (2 * math.log(theta))
