"""Greedy selection."""

import numpy as np
import numpy.typing as npt

from oracle.formats import Floats


def argmax(x: Floats) -> npt.NDArray[np.int64]:
    """The first index of the largest number in every row; 0 for a row of NaN.

    Shapes: x [T, V] -> [T].
    NaN never beats a number, not even -inf; +0 and -0 are equal.
    Source: temperature 0 of the published sampler; ties to the lowest index.
    """
    largest = np.max(x, axis=1, keepdims=True, where=~np.isnan(x), initial=-np.inf)
    return np.asarray(np.argmax(x == largest, axis=1), np.int64)
