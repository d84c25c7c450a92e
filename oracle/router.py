"""The router: scores of experts, which are chosen, and how much each weighs."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import round_to
from oracle.stages import StageProbe, unprobed
from oracle.topk import top_k

SOFTPLUS_LINEAR = 20.0
"""Above this softplus(g) is g itself, as in the published model; the difference is e^-20."""


def expert_scores(logits: np.ndarray) -> np.ndarray:
    """sqrt(softplus(g)), element by element; positive for every finite g above -745.

    Source: scoring_func sqrtsoftplus.
    """
    small = np.minimum(logits, SOFTPLUS_LINEAR)
    softplus = np.where(logits > SOFTPLUS_LINEAR, logits, np.log1p(np.exp(small)))
    return np.asarray(np.sqrt(softplus))


def select_experts(scores: np.ndarray, bias: np.ndarray, active: int) -> npt.NDArray[np.int64]:
    """The experts with the largest score plus bias, the largest first; ties to the lowest id.

    Shapes: scores [T,E], bias [E] -> [T,A].
    Errors: ValueError for NaN scores.
    """
    return top_k(scores + bias, active)


def routing_weights(
    scores: np.ndarray, chosen: npt.NDArray[np.integer], *, scale: float
) -> np.ndarray:
    """Each chosen expert's share of their scores, times the scale.

    Shapes: scores [T,E], chosen [T,A] -> [T,A].
    Source: norm_topk_prob and routed_scaling_factor; shares are of the unbiased scores, for
    experts chosen from the token table too.
    """
    own = np.take_along_axis(scores, chosen, axis=1)
    return np.asarray(own / own.sum(axis=1, keepdims=True) * scale)


def router(
    raw: np.ndarray,
    bias: np.ndarray,
    *,
    scale: float,
    A: int,
    probe: StageProbe = unprobed,
) -> dict[str, np.ndarray | Bounded]:
    """The choice by score: ids, weights, and the slots by ascending expert id.

    Shapes: raw [T,E], bias [E] -> ids, weights, order [T,A].
    Rounds: as prescribed, scores to float32 and score + bias to float32, so that a tie is a tie for
    everybody. NaN ranks below every number, by ascending id.
    """
    scores = round_to(expert_scores(raw), "f32")
    keys = round_to(scores + bias, "f32")
    probe("score", scores, "T E")
    probe("key", keys, "T E")
    unknown = np.isnan(keys)
    ranked = select_experts(np.where(unknown, -np.inf, keys), np.zeros_like(bias), raw.shape[1])
    numbers_first = np.argsort(np.take_along_axis(unknown, ranked, axis=1), axis=1, kind="stable")
    ids = np.take_along_axis(ranked, numbers_first, axis=1)[:, :A]
    return _routing(ids, scores, scale, probe)


def router_hash(
    raw: np.ndarray,
    table: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    *,
    scale: float,
    probe: StageProbe = unprobed,
) -> dict[str, np.ndarray | Bounded]:
    """The choice by table row: ids, weights, and the slots by ascending expert id.

    Shapes: raw [T,E], table [V,A], tokens [T] -> ids, weights, order [T,A].
    An expert or token that does not exist has id -1, and its token's weights are NaN.
    """
    there = (tokens >= 0) & (tokens < len(table))
    named = table[np.where(there, tokens, 0)]
    known = there[:, None] & (named >= 0) & (named < raw.shape[1])
    return _routing(np.where(known, named, -1), round_to(expert_scores(raw), "f32"), scale, probe)


def _routing(
    ids: npt.NDArray[np.int64], scores: np.ndarray, scale: float, probe: StageProbe
) -> dict[str, np.ndarray | Bounded]:
    """Weights of chosen experts; scale / A each where all their scores are 0 (0 / 0 otherwise)."""
    known = np.maximum(ids, 0)
    own = np.where(ids < 0, np.nan, np.take_along_axis(scores, known, axis=1))
    probe("chosen_score", own, "T A")
    probe("total", own.sum(axis=1), "T")
    total = np.take_along_axis(scores, known, axis=1).sum(axis=1, keepdims=True)
    weights = routing_weights(scores, known, scale=scale)
    weights = np.where(total == 0, scale / ids.shape[1], weights)
    weights = np.where((ids < 0).any(axis=1, keepdims=True), np.nan, weights)
    order = np.argsort(ids, axis=1, kind="stable")
    return {"ids": ids, "weights": Bounded(weights, np.abs(weights)), "order": order}
