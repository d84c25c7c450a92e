"""Hyper-connections: a token's M residual copies, mixed into each sub-block and back out."""

from typing import NamedTuple

import numpy as np


class Mixing(NamedTuple):
    """The coefficients of one sub-block: pre [T,M], post [T,M], comb [T,M,M] (source, target)."""

    pre: np.ndarray
    post: np.ndarray
    comb: np.ndarray


def mixing_logits(state: np.ndarray, fn: np.ndarray, *, eps: float) -> np.ndarray:
    """fn times each token's copies laid end to end, over the root of their mean square.

    Shapes: state [T,M,D], fn [R,M*D] -> [T,R].
    Source: hc_attn_fn, hc_ffn_fn, hc_head_fn; eps is rms_norm_eps, and the scale multiplies the
    product, not the input.
    """
    lanes = state.reshape(len(state), -1)
    scale = 1.0 / np.sqrt(np.mean(lanes * lanes, axis=-1, keepdims=True) + eps)
    return np.asarray((lanes @ fn.T) * scale)


def split_mixing(
    logits: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    *,
    copies: int,
    iterations: int,
    eps: float,
) -> Mixing:
    """The coefficients that mixing logits stand for; comb is made nearly doubly stochastic.

    Shapes: logits [T,(2+M)M], scale [3], base [(2+M)M].
    The last step normalises columns: for each target copy the sources sum to 1 within eps.
    Source: hc_sinkhorn_iters, hc_eps. Row softmax plus eps and one column step are the first
    iteration; every further one is a row step, then a column step.
    """
    m = copies
    pre = sigmoid(logits[:, :m] * scale[0] + base[:m]) + eps
    post = 2.0 * sigmoid(logits[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (logits[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m)
    comb = np.exp(comb - comb.max(axis=2, keepdims=True))
    comb = comb / comb.sum(axis=2, keepdims=True) + eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    return Mixing(pre, post, comb)


def head_weights(
    logits: np.ndarray, scale: np.ndarray, base: np.ndarray, *, eps: float
) -> np.ndarray:
    """The weights that collapse the copies before an output head.

    Shapes: logits [T,M], scale [1], base [M] -> [T,M].
    Source: hc_head_scale, hc_head_base.
    """
    return sigmoid(logits * scale[0] + base) + eps


def collapse(state: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each token's copies summed under its weights.  Shapes: [T,M,D], [T,M] -> [T,D]."""
    return np.asarray((weights[:, :, None] * state).sum(axis=1))


def expand(output: np.ndarray, state: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """The next state: copy k gets post_k times the output plus sum_j comb[j,k] of the old copies.

    Shapes: output [T,D], state [T,M,D], post [T,M], comb [T,M,M] -> [T,M,D].
    """
    mixed = (comb[:, :, :, None] * state[:, :, None, :]).sum(axis=1)
    return np.asarray(post[:, :, None] * output[:, None, :] + mixed)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), element by element."""
    with np.errstate(over="ignore"):  # e^-x may be infinite, and 1 / infinity is the right 0
        return np.asarray(1.0 / (1.0 + np.exp(-x)))
