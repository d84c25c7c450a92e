"""A gate's products and the experts that they choose; open coefficients beside them."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.hyper import hyper_split
from oracle.island_dots import island_dots
from oracle.router import SOFTPLUS_LINEAR, expert_scores, router, router_hash

Ids = npt.NDArray[np.int64]
Outputs = dict[str, np.ndarray | Bounded]


def router_gate(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    mix: np.ndarray,
    hyper_scale: np.ndarray,
    hyper_base: np.ndarray,
    ticket: np.ndarray,
    *,
    scale: float,
    eps: float,
    iterations: int,
    A: int,
    M: int,
) -> Outputs:
    """`router` of the products x w^T, and post and comb of `hyper_split`.

    Shapes: x [T,D], w [E,D], bias [E], mix [T,C] -> ids, weights, order [T,A], post [T,M],
    comb [T,M,M], scores [T,E].
    Rounds: as `router` prescribes. Magnitude: how far errors of the products move a score or a
    weight, in units of theirs, plus itself.
    """
    raw = island_dots(x, w)
    routing = router(raw.value, bias, scale=scale, A=A)
    mixing = hyper_split(mix, hyper_scale, hyper_base, eps=eps, iterations=iterations, M=M)
    return _outputs(raw, routing, mixing, ticket)


def router_gate_hash(
    x: np.ndarray,
    w: np.ndarray,
    table: Ids,
    tokens: Ids,
    mix: np.ndarray,
    hyper_scale: np.ndarray,
    hyper_base: np.ndarray,
    ticket: np.ndarray,
    *,
    scale: float,
    eps: float,
    iterations: int,
    M: int,
) -> Outputs:
    """The same with `router_hash`.  Shapes: table [V,A], tokens [T]."""
    raw = island_dots(x, w)
    routing = router_hash(raw.value, table, tokens, scale=scale)
    mixing = hyper_split(mix, hyper_scale, hyper_base, eps=eps, iterations=iterations, M=M)
    return _outputs(raw, routing, mixing, ticket)


def _outputs(raw: Bounded, routing: Outputs, mixing: Outputs, ticket: np.ndarray) -> Outputs:
    score = expert_scores(raw.value)
    # An infinite sum has a score that nothing moves.
    moved = _slope(raw.value, score) * raw.magnitude + score
    magnitude = np.where(np.isfinite(raw.value), moved, 0.0)
    ids = np.asarray(routing["ids"])
    weights = routing["weights"]
    assert isinstance(weights, Bounded)
    known = np.maximum(ids, 0)
    own = np.take_along_axis(score, known, axis=1)
    relative = np.take_along_axis(magnitude, known, axis=1) / np.where(own == 0, 1.0, own)
    total = own.sum(axis=1, keepdims=True)
    shared = (own / np.where(total == 0, 1.0, total) * relative).sum(axis=1, keepdims=True)
    spread = weights.magnitude * (relative + shared + 1.0)
    return {
        "ids": ids,
        "order": routing["order"],
        "weights": Bounded(weights.value, np.where(np.isfinite(spread), spread, 0.0)),
        "scores": Bounded(score, magnitude),
        "post": mixing["post"],
        "comb": mixing["comb"],
        "ticket": np.zeros_like(ticket),
    }


def _slope(raw: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The derivative of a score: sigmoid(g) / (2 sqrt(softplus(g))), and 1 / (2 sqrt(g)) above."""
    falling = 1.0 / (1.0 + np.exp(-np.minimum(raw, SOFTPLUS_LINEAR)))
    above = np.where(raw > SOFTPLUS_LINEAR, 1.0, falling)
    return np.asarray(np.where(score > 0, above / (2.0 * np.where(score > 0, score, 1.0)), 0.0))
