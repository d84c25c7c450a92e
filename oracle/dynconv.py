"""Grouped dynamic causal convolution inside a block, before or after a sublayer."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats


def dynconv(x: Floats, base: Floats, own: Floats, *, stage: int) -> Bounded:
    """Row i: the sum over taps t <= i of (base + own coefficient of the group) times row i - t.

    Shapes: x [T,D], base [2,C,D], own [T,2,C,G] with G groups of D/G channels -> [T,D].
    Rounds: nothing. Rows before the block count as absent.
    Magnitude: sum over taps of (|base| + |coefficient|) |x|.
    Source: drafters with a convolution around each sublayer; stage 0 before it, 1 after it.
    """
    rows, width = x.shape
    taps = base.shape[1]
    spread = own[:, stage].repeat(width // own.shape[-1], axis=-1)
    y, magnitude = np.zeros_like(x), np.zeros_like(x)
    for tap in range(min(taps, rows)):
        moved = x[: rows - tap]
        y[tap:] += (base[stage, tap] + spread[tap:, tap]) * moved
        magnitude[tap:] += (np.abs(base[stage, tap]) + np.abs(spread[tap:, tap])) * np.abs(moved)
    return Bounded(y, magnitude)
