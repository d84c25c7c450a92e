"""Hyper-connections: a token's M residual copies, mixed into each sub-block and back out."""

from functools import partial
from typing import NamedTuple

import numpy as np

from oracle.bounded import Bounded
from oracle.hyper_error import (
    SUM_ROUNDINGS,
    bounded,
    inverse_root_error,
    logits_error,
    sigmoid_error,
    sinkhorn_error,
)

Outputs = dict[str, np.ndarray | Bounded]


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


# ------------------------------------------------------------------ one function a kernel


def hyper_norm_scale(x: np.ndarray, mix: np.ndarray, *, mix_eps: float) -> np.ndarray:
    """mix over the root of the mean square of all of a token's lanes.

    Shapes: x [T,M,D], mix [T,C] -> [T,C].
    """
    squares = (x * x).mean(axis=(1, 2))[:, None]
    return np.asarray(mix / np.sqrt(squares + mix_eps))


def hyper_norm_scale_f32(x: np.ndarray, mix: np.ndarray, *, mix_eps: float) -> Bounded:
    """As `hyper_norm_scale`. Magnitude: |mix|, because every rounding scales it by 1 + u."""
    value = hyper_norm_scale(x, mix, mix_eps=mix_eps)
    return Bounded(value, np.abs(value))


def hyper_split(
    mix: np.ndarray, scale: np.ndarray, base: np.ndarray, *, eps: float, iterations: int, M: int
) -> Outputs:
    """The coefficients of scaled mixes.  Shapes: mix [T,(2+M)M] -> pre, post [T,M], comb [T,M,M].

    Magnitude: first-order errors, see `oracle.hyper_error`.
    """
    return {**_split(mix, np.zeros_like(mix), scale, base, eps, iterations, M)}


def hyper_head_gate(mix: np.ndarray, scale: np.ndarray, base: np.ndarray, *, eps: float) -> Bounded:
    """The weights of `head_weights`.  Shapes: mix [T,M], scale [1], base [M] -> [T,M]."""
    value = head_weights(mix, scale, base, eps=eps)
    logits = mix * scale[0] + base
    error = sigmoid_error(value - eps, logits_error(logits, np.zeros_like(mix), scale[0]))
    return bounded(value, error + np.abs(value))


def hyper_collapse(x: np.ndarray, pre: np.ndarray) -> Bounded:
    """The sum of `collapse`; magnitude: the same of absolute values."""
    return Bounded(collapse(x, pre), collapse(np.abs(x), np.abs(pre)))


def hyper_post(z: np.ndarray, x: np.ndarray, post: np.ndarray, comb: np.ndarray) -> Bounded:
    """The streams of `expand`; magnitude: the same of absolute values."""
    return Bounded(expand(z, x, post, comb), expand(*map(np.abs, (z, x, post, comb))))


def hyper_pre(
    x: np.ndarray,
    mix: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    iterations: int,
    roundings: float = 1.0,
) -> Outputs:
    """norm_scale, split and collapse.  Shapes: x [T,M,D], mix [T,C] -> pre, post, comb, y [T,D].

    roundings: of a scaled mix; one when the norm is computed in double.
    """
    mix = hyper_norm_scale(x, mix, mix_eps=mix_eps)
    m = x.shape[1]
    split = _split(mix, roundings * np.abs(mix), scale, base, eps, iterations, m)
    pre = split["pre"]
    error = collapse(np.abs(x), pre.magnitude + m * pre.value)
    return {**split, "y": bounded(collapse(x, pre.value), error)}


hyper_pre_f32 = partial(hyper_pre, roundings=SUM_ROUNDINGS / 2 + 4.0)


def hyper_post_pre_norm(
    z: np.ndarray,
    x: np.ndarray,
    post: np.ndarray,
    comb: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
    iterations: int,
    roundings: float = 1.0,
) -> Outputs:
    """The new streams, and the next sub-block's coefficients and normed input.

    Shapes: z [T,D], x [T,M,D], post [T,M], comb [T,M,M], fn [C,MD], gain [D] -> x_next, pre,
    post_next, comb_next, y [T,D], partial [T,C+1,MD/256] (sums of fn x and of squares, 256 lanes
    each), ticket [T] (back at 0).
    roundings: in a sum over all lanes; one when it is kept in double.
    """
    m = x.shape[1]
    state = expand(z, x, post, comb)
    error = (m + 1) * expand(*map(np.abs, (z, x, post, comb)))
    made = entered(
        state, error, fn, scale, base, gain, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps,
        iterations=iterations, roundings=roundings,
    )  # fmt: skip
    split = {"pre": made["pre"], "post_next": made["post"], "comb_next": made["comb"]}
    rest = {name: made[name] for name in ("y", "partial")}
    return {"x_next": bounded(state, error), **split, **rest, "ticket": np.zeros_like(ticket)}


hyper_post_pre_norm_f32 = partial(hyper_post_pre_norm, roundings=SUM_ROUNDINGS)


def entered(
    state: np.ndarray,
    state_error: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
    iterations: int,
    roundings: float,
) -> dict[str, Bounded]:
    """A sub-block's coefficients and normed input, from streams that are off by so much.

    Shapes: state and its error [T,M,D], fn [C,MD], gain [D] -> mix [T,C] (scaled), pre, post, comb,
    y [T,D], partial [T,C+1,MD/256].
    roundings: in a sum over all lanes.
    """
    m = state.shape[1]
    sums = _sums(state, state_error, fn, mix_eps=mix_eps, roundings=roundings)
    mix, error = sums["mix"].value, sums["mix"].magnitude
    split = _split(mix, error, scale, base, eps, iterations, m)
    y = collapsed_norm(
        state, state_error, split["pre"], gain, norm_eps=norm_eps, roundings=roundings
    )
    return {**split, "mix": bounded(mix, error), "y": y["y"], "partial": sums["partial"]}


def left(
    state: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
    roundings: float,
) -> dict[str, Bounded]:
    """The streams collapsed for a head, and normed.

    Shapes: state [T,M,D], fn [M,MD], scale [1], base [M], gain [D] -> collapsed, y [T,D], partial.
    """
    exact = np.zeros_like(state)
    sums = _sums(state, exact, fn, mix_eps=mix_eps, roundings=roundings)
    mix, error = sums["mix"].value, sums["mix"].magnitude
    value = head_weights(mix, scale, base, eps=eps)
    off = sigmoid_error(value - eps, logits_error(mix * scale[0] + base, error, scale[0]))
    pre = bounded(value, off + np.abs(value))
    made = collapsed_norm(state, exact, pre, gain, norm_eps=norm_eps, roundings=roundings)
    return {**made, "partial": sums["partial"]}


def _sums(
    state: np.ndarray, state_error: np.ndarray, fn: np.ndarray, *, mix_eps: float, roundings: float
) -> dict[str, Bounded]:
    """Scaled mixes [T,C] with their errors, and the sums of 256 lanes they are made of."""
    t, m, d = state.shape
    # What the sums over all lanes start from, and how far each term may be off.
    lanes, off = state.reshape(t, 1, m * d), state_error.reshape(t, 1, m * d)
    terms = np.concatenate([fn * lanes, lanes * lanes], axis=1)
    terms_error = np.concatenate([np.abs(fn) * off, 2.0 * np.abs(lanes) * off], axis=1)
    terms_error += roundings * np.abs(terms)
    starts = np.arange(0, m * d, 256)
    partial_sums = np.add.reduceat(terms, starts, axis=2)
    partial_error = np.add.reduceat(terms_error, starts, axis=2)

    sums, sums_error = terms.sum(axis=2), terms_error.sum(axis=2)
    raw, squares = sums[:, :-1], sums[:, -1:]
    inverse = 1.0 / np.sqrt(squares / (m * d) + mix_eps)
    relative = inverse_root_error(squares, sums_error[:, -1:], m * d, mix_eps)
    mix = raw * inverse
    mix_error = (sums_error[:, :-1] + np.abs(raw)) * inverse + np.abs(mix) * (relative + 1.0)
    return {"mix": Bounded(mix, mix_error), "partial": bounded(partial_sums, partial_error)}


def collapsed_norm(
    state: np.ndarray,
    state_error: np.ndarray,
    pre: Bounded,
    gain: np.ndarray,
    *,
    norm_eps: float,
    roundings: float,
) -> dict[str, Bounded]:
    """The streams under the weights pre, and that over its root mean square, times the gain."""
    m, d = state.shape[1:]
    y = collapse(state, pre.value)
    y_error = collapse(np.abs(state), pre.magnitude + m * pre.value)
    y_error += collapse(state_error, pre.value)
    square = (y * y).sum(axis=1, keepdims=True)
    square_error = (2.0 * np.abs(y) * y_error + roundings * y * y).sum(axis=1, keepdims=True)
    inverse = 1.0 / np.sqrt(square / d + norm_eps)
    relative = inverse_root_error(square, square_error, d, norm_eps)
    normed = gain * (y * inverse)
    normed_error = np.abs(gain) * inverse * y_error + np.abs(normed) * (relative + 2.0)
    return {"collapsed": bounded(y, y_error), "y": bounded(normed, normed_error)}


def _split(
    mix: np.ndarray,
    mix_error: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    eps: float,
    iterations: int,
    m: int,
) -> dict[str, Bounded]:
    pre, post, comb = split_mixing(mix, scale, base, copies=m, iterations=iterations, eps=eps)
    steps = scale.repeat([m, m, m * m])
    logits = mix * steps + base
    error = logits_error(logits, mix_error, steps)
    matrix = (len(mix), m, m)
    relative = sinkhorn_error(
        logits[:, 2 * m :].reshape(matrix),
        error[:, 2 * m :].reshape(matrix),
        iterations=iterations,
        eps=eps,
    )
    return {
        "pre": bounded(pre, sigmoid_error(pre - eps, error[:, :m]) + np.abs(pre)),
        "post": bounded(post, 2.0 * sigmoid_error(post / 2.0, error[:, m : 2 * m])),
        "comb": bounded(comb, comb * relative),
    }
