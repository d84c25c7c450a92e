"""The table of rotary angles: one builder, and every kernel reads its output.

At position 1e6 neighbouring float32 angles lie 0.06 apart, so an angle computed in another order is
another angle. The rule is fixed here once: speeds in float64 rounded to float32, the angle
position * speed rounded to float32, cosine and sine of that angle in float64 rounded to float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsv4.errors import Refusal

# The angle is a float32 product with the position as one factor; beyond 2^24 positions themselves
# would be rounded.
_MOST_POSITIONS = 2**24


@dataclass(frozen=True, slots=True)
class Yarn:
    """How far a model's rotations are stretched: config `rope_scaling`.

    original_length: positions the model was first trained on. factor: how much slower the slowest
    pairs turn. beta_fast, beta_slow: turns over the original length above which a pair keeps its
    speed, and below which it is slowed in full.
    """

    original_length: int
    factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0


def rope_speeds(width: int, theta: float, yarn: Yarn | None = None) -> npt.NDArray[np.float32]:
    """The width/2 rotation speeds, in radians per position.

    Rounds: once, from float64 to float32.
    Errors: Refusal for an odd width.
    Source: config `rope_theta` for window-only layers, `compress_rope_theta` with YaRN for others.
    """
    if width < 2 or width % 2:
        raise Refusal(
            f"a rope table of width {width} was asked for; lanes rotate in pairs\n"
            "  config key qk_rope_head_dim\n  give an even width"
        )
    pair = np.arange(width // 2, dtype=np.float64)
    speeds = np.power(np.float64(theta), -2.0 * pair / width)
    if yarn is not None and yarn.original_length > 0:
        low = max(math.floor(_pair_turning(yarn.beta_fast, width, theta, yarn)), 0)
        high: float = min(math.ceil(_pair_turning(yarn.beta_slow, width, theta, yarn)), width - 1)
        if low == high:
            high += 0.001
        slowed = np.clip((pair - low) / (high - low), 0.0, 1.0)
        speeds = speeds * (1.0 - slowed) + speeds / yarn.factor * slowed
    return speeds.astype(np.float32)


def rope_table(
    positions: int, width: int, theta: float, yarn: Yarn | None = None, *, first: int = 0
) -> npt.NDArray[np.float32]:
    """(cos, sin) pairs for positions first .. first + positions - 1.

    Shapes: -> [P,R], R = width; lane 2i holds the cosine of pair i, lane 2i+1 its sine. There is
    no amplitude factor anywhere.
    Errors: Refusal for an odd width or for positions that float32 cannot count.
    """
    if not 0 <= first <= first + positions <= _MOST_POSITIONS:
        raise Refusal(
            f"a rope table of positions {first} .. {first + positions - 1} was asked for\n"
            f"  float32 counts positions up to {_MOST_POSITIONS}\n"
            "  lower max_position_embeddings"
        )
    speeds = rope_speeds(width, theta, yarn).astype(np.float64)
    position = np.arange(first, first + positions, dtype=np.float64)
    # 24 bits times 24 bits is exact in float64, so this rounds once, to float32.
    angle = np.multiply.outer(position, speeds).astype(np.float32).astype(np.float64)
    table = np.empty((positions, width), np.float32)
    table[:, 0::2] = np.cos(angle)
    table[:, 1::2] = np.sin(angle)
    return table


def _pair_turning(turns: float, width: int, theta: float, yarn: Yarn) -> float:
    """The (fractional) pair that turns that many times over the original length."""
    wavelengths = yarn.original_length / (2.0 * math.pi * turns)
    return width * math.log(wavelengths) / (2.0 * math.log(theta))
