"""The experts of a token joined: an ordered sum over its slots, then the shared expert."""

import numpy as np
import numpy.typing as npt

from oracle.formats import Floats, round_to


def combine(contributions: Floats, order: npt.NDArray[np.int64]) -> Floats:
    """The contributions of every token, summed in the order of its slots.

    Shapes: contributions [T,A,D], order [T,A] -> [T,D].
    Rounds: as prescribed, every addition to float32, from +0 on; a float64 sum of two float32 and
    its encoding give the float32 sum (`movement_add`). An entry of order that is no slot makes its
    token NaN.
    Source: routed contributions are added by ascending expert id, so that neither the order of
    selection nor the batch shows in the bytes.
    """
    active = contributions.shape[1]
    known = (order >= 0) & (order < active)
    slots = np.where(known, order, 0)
    total = np.zeros_like(contributions[:, 0])
    for a in range(active):
        picked = np.take_along_axis(contributions, slots[:, a, None, None], axis=1)[:, 0]
        total = round_to(total + picked, "f32")
    return np.asarray(np.where(known.all(axis=1)[:, None], total, np.nan))


def combine_shared(contributions: Floats, order: npt.NDArray[np.int64], shared: Floats) -> Floats:
    """The same plus the shared expert's output, added last.

    Shapes: contributions [T,A,D], order [T,A], shared [T,D] -> [T,D].
    """
    return np.asarray(combine(contributions, order) + shared)
