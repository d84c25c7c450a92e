"""Attention over listed rows that are key and value at once, with a sink in the denominator."""

from collections.abc import Callable

import numpy as np


def sink_attention(
    q: np.ndarray, kv: np.ndarray, listed: np.ndarray, sink: np.ndarray, *, scale: float
) -> np.ndarray:
    """For each query and head the sum of its listed rows under softmax weights.

    Shapes: q [T,H,K], kv [N,K], listed [T,S], sink [H] -> [T,H,K].
    The sink is a logit of its own: not scaled, in the denominator only, without a value. An entry
    -1 is absent; one listed twice counts twice. A query without entries gives zeros.
    """
    rows = _gathered(kv, listed)
    logits = _logits(q, rows, listed, scale)
    top = np.maximum(logits.max(axis=2, initial=-np.inf), sink)
    weights = np.exp(logits - top[..., None])
    total = weights.sum(axis=2) + np.exp(sink - top)
    return np.asarray(np.einsum("ths,tsk->thk", weights, rows) / total[..., None])


def sink_attention_tiled(
    q: np.ndarray,
    kv: np.ndarray,
    listed: np.ndarray,
    sink: np.ndarray,
    *,
    scale: float,
    tile: int = 64,
    rounded: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> np.ndarray:
    """The same number as `sink_attention`, by a running maximum over tiles of the list.

    Rounds: the weights, as `rounded` says, for the product with the values only; the denominator
    sums them unrounded. The maximum is over the rows alone: the sink joins at the end.
    """
    top = np.full(q.shape[:2], -np.inf, q.dtype)
    total = np.zeros(q.shape[:2], q.dtype)
    value = np.zeros_like(q)
    for start in range(0, listed.shape[1], tile):
        part = listed[:, start : start + tile]
        rows = _gathered(kv, part)
        logits = _logits(q, rows, part, scale)
        now = np.maximum(top, logits.max(axis=2))
        shift = np.where(np.isfinite(now), now, 0.0)  # nothing listed so far: -inf - -inf
        fade = np.exp(top - shift)
        weights = np.exp(logits - shift[..., None])
        total = total * fade + weights.sum(axis=2)
        value = value * fade[..., None] + np.einsum("ths,tsk->thk", rounded(weights), rows)
        top = now
    with np.errstate(over="ignore"):  # a sink far above every row: the result is 0, as it should
        total = total + np.exp(sink - np.where(np.isfinite(top), top, 0.0))
    return np.asarray(value / total[..., None])


def _gathered(kv: np.ndarray, listed: np.ndarray) -> np.ndarray:
    rows = kv[np.maximum(listed, 0)] if len(kv) else np.zeros((*listed.shape, kv.shape[1]))
    # Absent entries weigh 0, and 0 times whatever row would stand in must not become NaN.
    return np.where((listed >= 0)[..., None], rows, 0.0).astype(kv.dtype, copy=False)


def _logits(q: np.ndarray, rows: np.ndarray, listed: np.ndarray, scale: float) -> np.ndarray:
    logits = np.einsum("thk,tsk->ths", q, rows) * scale
    return np.where((listed >= 0)[:, None, :], logits, -np.inf).astype(q.dtype, copy=False)
