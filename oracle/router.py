"""The router: scores of experts, which are chosen, and how much each weighs."""

import numpy as np
import numpy.typing as npt

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


def select_experts(
    scores: np.ndarray, bias: np.ndarray, active: int
) -> npt.NDArray[np.int64]:
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
