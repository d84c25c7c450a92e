"""The expert sub-block: routing, the chosen experts, the shared one, and their sum."""

import numpy as np

from oracle.conditions import Conditions
from oracle.router import expert_scores, routing_weights, select_experts
from oracle.swiglu import swiglu
from oracle.weights import Expert, Moe


def moe(cond: Conditions, m: Moe, x: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The sum of each row's chosen experts, ascending, and last the shared expert.

    Shapes: x [T,D], tokens [T] -> [T,D].  Only layers with a table look at the tokens.
    """
    chosen, weights = route(cond, m, x, tokens)
    y = np.zeros_like(x)
    for number, expert in enumerate(m.experts):
        rows, slots = np.nonzero(chosen == number)
        if len(rows):
            y[rows] += run_expert(cond, expert, x[rows], weights[rows, slots][:, None])
    return cond.law.rounded(y + run_expert(cond, m.shared, x))


def route(
    cond: Conditions, m: Moe, x: np.ndarray, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(expert ids [T,A], their weights [T,A]) of every row.

    Errors: ValueError for a token outside the table, or scores that are NaN.
    """
    c = cond.config
    scores = expert_scores(cond.linear(x, m.gate))
    if m.table is not None:
        chosen = m.table[tokens]
    else:
        assert m.bias is not None, "a layer without a table has a bias"
        chosen = select_experts(scores, m.bias, c.n_activated_experts)
    return chosen, routing_weights(scores, chosen, scale=c.route_scale)


def run_expert(
    cond: Conditions, expert: Expert, x: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """One expert's output; a routing weight is inside the second product's rounded input.

    Shapes: x [T,D], weights [T,1] -> [T,D].
    """
    gate, up = cond.linear(x, expert.w1), cond.linear(x, expert.w3)
    with np.errstate(over="ignore"):  # e^-gate of a very negative gate; the product is 0
        hidden = swiglu(gate, up, cond.config.swiglu_limit)
    if weights is not None:
        hidden = hidden * weights
    return cond.linear(cond.law.rounded(hidden), expert.w2)
