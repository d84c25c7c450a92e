"""float32 sums replayed one rounding at a time, for tests that pin the order of a kernel's sums."""

import numpy as np


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once, from float64: the sum is rounded to odd first."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    towards = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits % 2 == 0), bits + towards, bits).view(np.float64)
    return odd.astype(np.float32)


def folded(lanes: np.ndarray) -> np.ndarray:
    """The xor butterfly over the last axis, 32 wide."""
    for width in (16, 8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]
