"""The few largest elements of rows in a total order."""

import numpy as np

from oracle.formats import Floats


def candidates_topk(x: Floats, *, K: int) -> dict[str, np.ndarray]:
    """Values and ids of the K largest of every row: falling, ties by index, NaN last. [T,K]."""
    nans = np.isnan(x)
    place = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    ids = np.lexsort((place, np.where(nans, 0.0, -x), nans))[:, :K]
    return {"values": np.take_along_axis(x, ids, axis=1), "ids": ids}
