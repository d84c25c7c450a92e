"""A product with bf16 weights: y = x w^T."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats


def linear_bf16(w: Floats, x: Floats) -> Bounded:
    """Each row of x times each row of w.

    Shapes: w [N,K], x [M,K] -> [M,N].
    Rounds: nothing; a product of two bf16 is exact in float64, and its sums are 2^-53 away.
    Magnitude: sum |x w|, what the rounding errors of any order of the sum scale with.
    Source: the bf16-dequant law of linear layers (float32 accumulation, activations in bf16).
    """
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)
