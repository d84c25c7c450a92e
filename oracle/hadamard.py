"""The Hadamard transform of the indexer's queries and keys."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats


def hadamard(x: Floats, scale: float) -> Bounded:
    """Every row times the Sylvester matrix, times the scale.

    Shapes: x [T, K], K a power of two -> [T, K].
    Rounds: not at all. The magnitude is |scale| sum_i |x_i|, the same for a whole row: every
    element of the matrix is 1 or -1.
    Source: indexer of the published model, scale K^-1/2, applied after rope.
    """
    value = scale * (x @ sylvester(x.shape[1]))
    return Bounded(value, abs(scale) * np.abs(x).sum(axis=1, keepdims=True))


def sylvester(order: int) -> Floats:
    """The Hadamard matrix in natural order: entry (i, j) is -1 to the bits that i and j share.

    Errors: ValueError unless order is a power of two.
    """
    if order < 1 or order & (order - 1):
        raise ValueError(f"a Sylvester matrix of order {order}: take a power of two")
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
