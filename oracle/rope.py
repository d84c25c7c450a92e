"""Rotary embedding of interleaved pairs, and the table of its angles."""

import math

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats


def rope(x: Floats, table: Floats, positions: npt.NDArray[np.int64], *, inverse: int) -> Bounded:
    """x with the last R lanes of every head rotated by the angle of its row's position.

    Shapes: x [T,H,K], table [P,R] of (cos, sin) pairs, positions [T] -> [T,H,K].
    Rounds: nothing.  A position outside 0..P-1 gives NaN in the rotated lanes.
    Magnitude: |a cos| + |b sin| where the lane is rotated, 0 where it must stay as it is.
    Source: rotation on the last lanes, pairs (2i, 2i+1); the inverse negates the sine.
    """
    width = table.shape[1]
    outside = (positions < 0) | (positions >= table.shape[0])
    rows = table[np.where(outside, 0, positions)]
    rows[outside] = np.nan
    c, s = rows[:, None, 0::2], rows[:, None, 1::2]
    if inverse:
        s = -s
    a, b = x[..., -width::2], x[..., 1 - width :: 2]
    y, magnitude = x.copy(), np.zeros_like(x)
    y[..., -width::2], y[..., 1 - width :: 2] = a * c - b * s, a * s + b * c
    magnitude[..., -width::2] = np.abs(a * c) + np.abs(b * s)
    magnitude[..., 1 - width :: 2] = np.abs(a * s) + np.abs(b * c)
    return Bounded(y, magnitude)


def frequencies(
    width: int,
    theta: float,
    *,
    original: int = 0,
    factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> list[float]:
    """The width/2 rotation speeds in radians per position; YaRN when original > 0.

    Rounds: to float32, once.
    Source: config rope_theta or compress_rope_theta, and rope_scaling.
    """
    speeds = [math.exp(-2.0 * i / width * math.log(theta)) for i in range(width // 2)]
    if original > 0:
        low = max(math.floor(_pair_turning(beta_fast, width, theta, original)), 0)
        high = min(math.ceil(_pair_turning(beta_slow, width, theta, original)), width - 1)
        span = float(high - low) or 0.001
        for i, speed in enumerate(speeds):
            slow = min(max((i - low) / span, 0.0), 1.0)
            speeds[i] = speed * (1.0 - slow) + speed / factor * slow
    return [float(np.float32(speed)) for speed in speeds]


def table_row(position: int, speeds: list[float]) -> list[float]:
    """One position's (cos, sin) pairs, one after the other.

    Rounds: the angle position * speed to float32, then each cosine and sine to float32.
    Source: the project's table rule; the rounded angle is the model's at long range.
    """
    row = []
    for speed in speeds:
        angle = float(np.float32(position * speed))
        row += [float(np.float32(math.cos(angle))), float(np.float32(math.sin(angle)))]
    return row


def _pair_turning(times: float, width: int, theta: float, original: int) -> float:
    """The (fractional) pair that turns that many times over the original context."""
    return width * math.log(original / (2.0 * math.pi * times)) / (2.0 * math.log(theta))
