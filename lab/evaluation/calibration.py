"""Whether a drafter's confidence means what it says: bins of probability beside what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.evaluation.drafting import ForcedRound


@dataclass(frozen=True, slots=True)
class Bin:
    """Drafts whose confidence lies in low <= p < high (the last bin includes 1).

    confidence, accepted: means; 0 in an empty bin.
    """

    low: float
    high: float
    count: int
    confidence: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The bins, and the expected calibration error: the gap of a bin in the mean over drafts.

    Only drafts that were judged count: those up to the first wrong one of each round. ignored:
    judged drafts whose score is no number.
    """

    bins: tuple[Bin, ...]
    error: float
    count: int
    ignored: int
    confidence: float
    accepted: float


def calibration(rounds: Sequence[ForcedRound], bins: int = 10) -> Calibration | None:
    """The calibration of a confidence head; None without one, or without a judged draft.

    A draft's confidence is the logistic function of its score, in float64.
    """
    scores, outcomes = [], []
    for made in rounds:
        for i, score in enumerate(made.confidence or ()):
            if i <= made.accepted:
                scores.append(score)
                outcomes.append(made.accepted > i)
    raw, hit = np.asarray(scores, np.float64), np.asarray(outcomes, np.float64)
    known = ~np.isnan(raw)
    if not known.any():
        return None
    with np.errstate(over="ignore"):
        p, hit = 1.0 / (1.0 + np.exp(-raw[known])), hit[known]
    edges = np.arange(bins + 1) / bins
    place = np.minimum(np.searchsorted(edges, p, side="right") - 1, bins - 1)
    found = []
    for k in range(bins):
        mine = place == k
        count = int(mine.sum())
        found.append(
            Bin(
                float(edges[k]),
                float(edges[k + 1]),
                count,
                float(p[mine].mean()) if count else 0.0,
                float(hit[mine].mean()) if count else 0.0,
            )
        )
    error = sum(b.count * abs(b.confidence - b.accepted) for b in found) / len(p)
    return Calibration(
        bins=tuple(found),
        error=float(error),
        count=len(p),
        ignored=int((~known).sum()),
        confidence=float(p.mean()),
        accepted=float(hit.mean()),
    )
