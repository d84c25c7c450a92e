"""Ordered selection of the largest: ties go to the lowest index, NaN is refused."""

import numpy as np
import numpy.typing as npt


def top_k(scores: np.ndarray, k: int) -> npt.NDArray[np.int64]:
    """The indices of the k largest of each row, the largest first; equals in ascending order.

    Shapes: scores [..,N] -> [..,k].
    Errors: ValueError for NaN (it has no order), or k outside 0..N.
    """
    if np.isnan(scores).any():
        raise ValueError(f"top {k} of {scores.shape}: {int(np.isnan(scores).sum())} scores are NaN")
    if not 0 <= k <= scores.shape[-1]:
        raise ValueError(f"top {k} of {scores.shape[-1]} scores: ask for 0 to {scores.shape[-1]}")
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


def top_visible(scores: np.ndarray, visible: npt.ArrayLike, k: int) -> npt.NDArray[np.int64]:
    """As `top_k` among the first `visible` scores of each row; -1 where there are fewer than k.

    Shapes: scores [T,N], visible [T] -> [T,k].
    """
    limit = np.asarray(visible)[:, None]
    chosen = top_k(np.where(np.arange(scores.shape[1]) < limit, scores, -np.inf), k)
    return np.where(chosen < limit, chosen, -1)


def topk(
    score: np.ndarray, visible: np.ndarray, offset: int, S: int
) -> dict[str, npt.NDArray[np.int64]]:
    """The S largest visible scores of each row, as `top_visible`, and how many of them are NaN.

    Shapes: score [T,N], visible [T] -> ids [T,S], nans [T]; ids are moved up by `offset`.
    A NaN comes last, after minus infinity, instead of being refused: `nans` says that it is there.
    """
    count = np.clip(visible, 0, score.shape[1])
    nans = np.isnan(score) & (np.arange(score.shape[1]) < count[:, None])
    ids = np.full((len(score), S), -1)
    for t, n in enumerate(count):
        order = top_k(np.where(nans[t, :n], -np.inf, score[t, :n]), int(n))
        order = np.concatenate([order[~nans[t, order]], np.flatnonzero(nans[t])])[:S]
        ids[t, : order.size] = order + offset
    return {"ids": ids, "nans": nans.sum(axis=1)}
