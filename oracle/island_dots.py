"""Products with float32 inputs on both sides: y = x w^T."""

import numpy as np

from oracle.bounded import Bounded


def island_dots(x: np.ndarray, w: np.ndarray) -> Bounded:
    """Each row of x times each row of w.

    Shapes: x [T,K], w [N,K] -> [T,N].
    Rounds: nothing; a product of two float32 is exact in float64, and its sums are 2^-53 away.
    Magnitude: sum |x w|, what the rounding errors of any order of the sum scale with.
    Source: the float32 islands: hyper-connection mixes, router, compressors, heads.
    """
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)


def island_dots_f32(x: np.ndarray, w: np.ndarray) -> Bounded:
    """As `island_dots`; the kernel adds in float32."""
    return island_dots(x, w)


def island_dots_bf16(x: np.ndarray, w: np.ndarray) -> Bounded:
    """As `island_dots`; weights stored in bf16 are promoted exactly."""
    return island_dots(x, w)


def island_dots_bf16_f32(x: np.ndarray, w: np.ndarray) -> Bounded:
    """As `island_dots_bf16`; the kernel adds in float32."""
    return island_dots(x, w)
