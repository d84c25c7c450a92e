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


def linear_bf16_grouped(w: Floats, x: Floats, *, group: int) -> Bounded:
    """Every `group` rows of w on their own K columns of x.

    Shapes: w [N,K], x [M,N/group*K] -> [M,N].  Otherwise as `linear_bf16`.
    """
    return by_groups(w, x, group)


def by_groups(w: Floats, x: Floats, group: int) -> Bounded:
    """The products of groups of rows of w with groups of columns of x, side by side."""
    (rows, columns), groups = w.shape, len(w) // group
    stacked = w.reshape(groups, group, columns)
    parts = x.reshape(len(x), groups, columns)
    value = np.einsum("mgk,gnk->mgn", parts, stacked)
    magnitude = np.einsum("mgk,gnk->mgn", np.abs(parts), np.abs(stacked))
    return Bounded(value.reshape(len(x), rows), magnitude.reshape(len(x), rows))
