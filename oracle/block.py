"""One layer of the model: two sub-blocks, each between the two halves of a hyper-connection."""

from collections.abc import Callable

import numpy as np

from oracle.conditions import Conditions
from oracle.hyper import (
    Mixing,
    collapse,
    expand,
    head_weights,
    mixing_logits,
    split_mixing,
)
from oracle.moe_block import moe
from oracle.weights import Block, Exit, Hyper

Probe = Callable[[str, np.ndarray], None]
"""Called with the name and value of each intermediate; names are those of recorded outputs."""


def ignore(name: str, value: np.ndarray) -> None:
    """The probe that looks at nothing."""


def run_block(
    cond: Conditions,
    block: Block,
    state: np.ndarray,
    tokens: np.ndarray,
    attend: Callable[[np.ndarray], np.ndarray],
    probe: Probe = ignore,
) -> np.ndarray:
    """The state after a layer; `attend` is its attention, from normalised inputs to outputs.

    Shapes: state [T,M,D], tokens [T] -> [T,M,D]; attend [T,D] -> [T,D].
    """
    x, mixing = enter(cond, block.attn_hyper, state)
    x = cond.norm(x, block.attn_norm)
    probe("attn_norm", x)
    y = attend(x)
    probe("attn", y)
    state = leave(cond, y, state, mixing)
    x, mixing = enter(cond, block.ffn_hyper, state)
    x = cond.norm(x, block.ffn_norm)
    probe("ffn_norm", x)
    y = moe(cond, block.moe, x, tokens)
    probe("ffn", y)
    return leave(cond, y, state, mixing)


def enter(cond: Conditions, hyper: Hyper, state: np.ndarray) -> tuple[np.ndarray, Mixing]:
    """(the collapsed state, the coefficients with which the sub-block's output comes back)."""
    c = cond.config
    logits = mixing_logits(state, hyper.fn, eps=c.norm_eps)
    mixing = split_mixing(
        logits,
        hyper.scale,
        hyper.base,
        copies=c.hc_mult,
        iterations=c.hc_sinkhorn_iters,
        eps=c.hc_eps,
    )
    return cond.law.rounded(collapse(state, mixing.pre)), mixing


def leave(cond: Conditions, y: np.ndarray, state: np.ndarray, mixing: Mixing) -> np.ndarray:
    """The next state, from a sub-block's output and the state that entered it."""
    return cond.law.rounded(expand(y, state, mixing.post, mixing.comb))


def collapse_exit(cond: Conditions, exit: Exit, state: np.ndarray) -> np.ndarray:
    """The copies as one vector before an output head's norm.  Shapes: [T,M,D] -> [T,D]."""
    c, hyper = cond.config, exit.hyper
    logits = mixing_logits(state, hyper.fn, eps=c.norm_eps)
    weights = head_weights(logits, hyper.scale, hyper.base, eps=c.hc_eps)
    return cond.law.rounded(collapse(state, weights))


def copies(embedding: np.ndarray, count: int) -> np.ndarray:
    """The entry state: every copy is the embedding.  Shapes: [T,D] -> [T,M,D]."""
    return np.repeat(embedding[:, None, :], count, axis=1)
