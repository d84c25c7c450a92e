"""The indexer: how much each compressed block matters to each query."""

from collections.abc import Callable

import numpy as np


def index_scores(
    q: np.ndarray,
    keys: np.ndarray,
    weights: np.ndarray,
    *,
    rounded: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> np.ndarray:
    """The weighted sum over heads of the positive parts of query times key.

    Shapes: q [T,Hi,di], keys [N,di], weights [T,Hi] -> [T,N].
    Rounds: as `rounded` says, after the product, after the weight, and after the sum; not at all
    by default.
    Source: head weights are signed, so scores are too; the clamp at zero comes before the weight.
    """
    product = rounded(q @ keys.T)
    weighted = rounded(np.maximum(product, 0.0) * weights[:, :, None])
    return rounded(weighted.sum(axis=1))
