"""Rows picked, placed, added, repeated and averaged.

A row id outside the array reads as NaN (bytes: 0xFF) and is skipped when written to; ids that are
written to are distinct. Source: the data movement of the decode step and of the expert layer.
"""

import numpy as np
import numpy.typing as npt

from oracle.formats import Floats, round_to

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def movement_embed(table: Floats, ids: Ids) -> Floats:
    """The embedding of every token.  Shapes: table [V, D], ids [T] -> [T, D]."""
    return _rows(table, ids)


def movement_gather(x: Floats, ids: Ids) -> Floats:
    """The rows of those ids.  Shapes: x [S, D], ids [A] -> [A, D]."""
    return _rows(x, ids)


def movement_gather_bytes(x: Bytes, ids: Ids) -> Bytes:
    """The rows of those ids, as bytes.  Shapes: x [S, D], ids [A] -> [A, D]."""
    known = _known(ids, x)
    return np.asarray(np.where(known[:, None], x[np.where(known, ids, 0)], np.uint8(0xFF)))


def movement_gather_row(x: Floats, ids: Ids, slot: int) -> Floats:
    """The row of the id in that slot.  Shapes: x [S, D], ids [A] -> [D]."""
    return np.asarray(_rows(x, ids[slot : slot + 1])[0])


def movement_scatter(x: Floats, ids: Ids, y: Floats) -> Floats:
    """y with the rows of those ids replaced.  Shapes: x [A, D], ids [A], y [S, D] -> [S, D]."""
    known = _known(ids, y)
    result = y.copy()
    result[ids[known]] = x[known]
    return result


def movement_scatter_bf16(x: Floats, ids: Ids, y: Floats) -> Floats:
    """As `movement_scatter`; rounds: once, to bf16, as whoever encodes the result does."""
    return movement_scatter(x, ids, y)


def movement_scatter_add(x: Floats, ids: Ids, y: Floats) -> Floats:
    """y with x added to the rows of those ids.  Shapes: x [A, D], ids [A], y [S, D] -> [S, D].

    Rounds: not at all; float64 holds the sum of two float32 closely enough that encoding it gives
    the float32 sum (`movement_add`).
    """
    known = _known(ids, y)
    result = y.copy()
    result[ids[known]] += x[known]
    return result


def movement_add(x: Floats, y: Floats) -> Floats:
    """The sums.  Shapes: x [N], y [N] -> [N].

    Rounds: float64 may round once where float32 would too, which changes nothing. A float64 sum of
    two float32, |a| >= |b|, is inexact only if b ends more than 52 bits below the first bit of a;
    then |b| < 2^-28 |a|, and both routes give a.
    """
    return x + y


def movement_take(x: Floats, offset: int, C: int) -> Floats:
    """C columns from an offset.  Shapes: x [T, S] -> [T, C]."""
    return x[:, offset : offset + C]


def movement_place(x: Floats, offset: int, y: Floats) -> Floats:
    """y with columns from an offset replaced.  Shapes: x [T, C], y [T, S] -> [T, S]."""
    result = y.copy()
    result[:, offset : offset + x.shape[1]] = x
    return result


def movement_repeat(x: Floats, M: int) -> Floats:
    """Every row M times.  Shapes: x [T, D] -> [T, M, D]."""
    return np.repeat(x[:, None, :], M, axis=1)


def movement_mean(x: Floats) -> Floats:
    """The mean of the streams.  Shapes: x [T, M, D] -> [T, D].

    Rounds: as prescribed for the drafter's taps, every addition to float32, streams ascending from
    0, and the one division.
    """
    total = np.zeros_like(x[:, 0])
    for m in range(x.shape[1]):
        total = round_to(total + x[:, m], "f32")
    return np.asarray(total / x.shape[1])


def _known(ids: Ids, target: Floats | Bytes) -> Mask:
    return np.asarray((ids >= 0) & (ids < target.shape[0]))


def _rows(x: Floats, ids: Ids) -> Floats:
    known = _known(ids, x)
    return np.asarray(np.where(known[:, None], x[np.where(known, ids, 0)], np.nan))
