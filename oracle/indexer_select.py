"""The indexer's scores and the largest of them, in order."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats
from oracle.indexer import indexer_score
from oracle.topk import topk


def indexer_select(
    q: Floats,
    keys: Floats,
    weights: Floats,
    visible: npt.NDArray[np.int64],
    bins: npt.NDArray[np.int64],
    list: npt.NDArray[np.int64],
    tickets: npt.NDArray[np.int64],
    wscale: float,
    offset: int,
    S: int,
) -> dict[str, Bounded | npt.NDArray[np.int64]]:
    """`indexer_score`, and `topk` of it.

    Shapes: q [T,H,K], keys [N,K], weights [T,H], visible [T] -> score [T,N], ids [T,S], nans [T];
    bins, list and tickets back at 0.
    Rounds: the scores to float32 before they are compared, where equal ones keep their order.
    """
    score = indexer_score(q, keys, weights, visible, wscale)
    chosen = topk(score.value.astype(np.float32).astype(np.float64), visible, offset, S)
    return {
        "score": score,
        **chosen,
        "bins": np.zeros_like(bins),
        "list": np.zeros_like(list),
        "tickets": np.zeros_like(tickets),
    }
