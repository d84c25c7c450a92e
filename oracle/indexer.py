"""The indexer: how much each compressed block matters to each query."""

from collections.abc import Callable

import numpy as np

from oracle.bounded import Bounded


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


def indexer_score(
    q: np.ndarray, keys: np.ndarray, weights: np.ndarray, visible: np.ndarray, wscale: float
) -> Bounded:
    """`index_scores` with weights times wscale; minus infinity from visible[t] on.

    Shapes: q [T,H,K], keys [N,K], weights [T,H], visible [T] -> [T,N].
    Rounds: not at all. The magnitude is the same sum over absolute values.
    """
    score, magnitude = (np.empty((len(q), len(keys))) for _ in range(2))
    for t in range(len(q)):  # one query at a time: [T,H,N] would not fit
        one = slice(t, t + 1)
        score[one] = index_scores(q[one], keys, weights[one] * wscale)
        sizes = np.abs(q[one]), np.abs(keys), np.abs(weights[one] * wscale)
        magnitude[one] = index_scores(*sizes)
    hidden = np.arange(len(keys)) >= visible[:, None]
    return Bounded(np.where(hidden, -np.inf, score), np.where(hidden, 0.0, magnitude))


def indexer_score_f32(
    q: np.ndarray, keys: np.ndarray, weights: np.ndarray, visible: np.ndarray, wscale: float
) -> Bounded:
    """As `indexer_score`."""
    return indexer_score(q, keys, weights, visible, wscale)
