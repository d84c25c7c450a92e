"""Products with weights in blocks of 32 with a scale each."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats

Codes = npt.NDArray[np.uint8]


def quant_linear_q8(x: Floats, codes: Codes, scales: Floats) -> Bounded:
    """y = x w^T with w = scale * signed byte.

    Shapes: x [T,K], codes [N,K], scales [N,K/32] -> [T,N].  Rounds: nothing.
    Magnitude: sum |w x|.
    """
    return _product(x, codes.astype(np.uint8).view(np.int8).astype(np.float64), scales)


def quant_linear_q4(x: Floats, codes: Codes, scales: Floats) -> Bounded:
    """y = x w^T with w = scale * (nibble - 8).

    Shapes: x [T,K], codes [N,K/2], scales [N,K/32] -> [T,N].  A block's byte j holds the elements
    j and j + 16.  Magnitude: sum |w x|.
    """
    blocks = codes.astype(np.uint8).reshape(len(codes), -1, 16)
    numbers = np.concatenate([blocks & 15, blocks >> 4], axis=2).astype(np.float64) - 8
    return _product(x, numbers.reshape(len(codes), -1), scales)


def _product(x: Floats, numbers: Floats, scales: Floats) -> Bounded:
    w = numbers * np.repeat(scales, 32, axis=1)
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)
