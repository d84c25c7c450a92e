"""Index outputs: exact where a tie rule makes the answer unique, else overlap and regret."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsv4.errors import SpecError
from oracle.formats import Floats

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class IndexDiff:
    """How chosen ids compare with the reference's choice, row by row.

    exact: rows with the same ids in the same places; same_set: rows with the same ids in any order.
    jaccard_mean, jaccard_min: |A and B| / |A or B| of the id sets; negative ids mean "none" and
    count in neither. invalid: ids beyond the candidates; repeated: ids given twice in one row.
    regret_max: the largest amount by which a row's chosen scores sum to less than the best choice,
    as a share of that row's largest |score|; 0 when no scores were given.
    """

    rows: int
    exact: int
    same_set: int
    jaccard_mean: float
    jaccard_min: float
    invalid: int
    repeated: int
    regret_max: float


def compare_indices(got: Ids, ref: Ids, scores: Floats | None = None) -> IndexDiff:
    """Compare ids [.., k] chosen from candidates; scores [.., candidates] measure the regret.

    Errors: SpecError when the shapes do not belong together.
    """
    if got.shape != ref.shape or (scores is not None and scores.shape[:-1] != ref.shape[:-1]):
        other = "" if scores is None else f", scores {list(scores.shape)}"
        raise SpecError(f"compare ids: got {list(got.shape)}, reference {list(ref.shape)}{other}")
    a, b = (x.reshape(-1, x.shape[-1]).astype(np.int64) for x in (got, ref))
    limit = scores.shape[-1] if scores is not None else np.iinfo(np.int64).max
    valid_a, valid_b = (a >= 0) & (a < limit), (b >= 0) & (b < limit)
    both, once_a, once_b = _overlap(a, b, valid_a, valid_b)
    union = once_a + once_b - both
    jaccard = np.where(union > 0, both / np.maximum(union, 1), 1.0)
    regret = 0.0
    if scores is not None and a.size:
        regret = _regret(a, b, valid_a, valid_b, scores.reshape(a.shape[0], -1))
    return IndexDiff(
        rows=a.shape[0],
        exact=int((a == b).all(1).sum()),
        same_set=int((jaccard == 1.0).sum()),
        jaccard_mean=float(jaccard.mean()) if jaccard.size else 1.0,
        jaccard_min=float(jaccard.min(initial=1.0)),
        invalid=int((a >= limit).sum()),
        repeated=int((valid_a.sum(1) - once_a).sum()),
        regret_max=regret,
    )


def _overlap(
    a: Ids, b: Ids, valid_a: npt.NDArray[np.bool_], valid_b: npt.NDArray[np.bool_]
) -> tuple[Ids, Ids, Ids]:
    """Per row: how many distinct valid ids are in both, in a, and in b."""
    first_a, first_b = _first_times(a, valid_a), _first_times(b, valid_b)
    once_a, once_b = np.where(first_a, a, -1), np.where(first_b, b, -1)
    merged = np.sort(np.concatenate([once_a, once_b], 1), 1)
    both = ((merged[:, 1:] == merged[:, :-1]) & (merged[:, 1:] >= 0)).sum(1)
    return both, first_a.sum(1), first_b.sum(1)


def _first_times(ids: Ids, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    by_id = np.argsort(ids, 1, kind="stable")
    ordered = np.take_along_axis(ids, by_id, 1)
    fresh = np.ones(ids.shape, np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.empty(ids.shape, np.bool_)
    np.put_along_axis(first, by_id, fresh, 1)
    return np.asarray(first & valid)


def _regret(
    a: Ids,
    b: Ids,
    valid_a: npt.NDArray[np.bool_],
    valid_b: npt.NDArray[np.bool_],
    scores: Floats,
) -> float:
    chosen = np.where(_first_times(a, valid_a), _pick(scores, a, valid_a), 0.0).sum(1)
    best = np.where(valid_b, _pick(scores, b, valid_b), 0.0).sum(1)
    largest = np.abs(np.where(np.isfinite(scores), scores, 0.0)).max(1)
    return float(((best - chosen) / np.where(largest > 0, largest, 1.0)).max(initial=0.0))


def _pick(scores: Floats, ids: Ids, valid: npt.NDArray[np.bool_]) -> Floats:
    picked = np.take_along_axis(scores, np.where(valid, ids, 0), 1)
    return np.where(np.isfinite(picked), picked, 0.0)
