"""Gated DeltaNet: decays, unit keys, and the recurrence over a matrix state per head."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats

NORM_EPS = 1e-6
"""Inside the root of the key and query norms; fixed by the published model."""


def unit_heads(x: Floats) -> Floats:
    """Each head's lanes over their length. Shapes: [T,G,K] -> [T,G,K]."""
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + NORM_EPS))


def decay(a: Floats, a_log: Floats, dt_bias: Floats) -> Floats:
    """The logarithm of each head's decay, at most 0: -e^A_log softplus(a + dt_bias). [T,H]."""
    return np.asarray(-np.exp(a_log) * np.logaddexp(0.0, a + dt_bias))


def recurrence(
    q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """Outputs of T steps and the state after them.

    Shapes: q and k [T,H,K], v [T,H,D], g and beta [T,H], state [H,K,D] -> [T,H,D], [H,K,D].
    Per head and step: S = e^g S; d = beta (v - S^T k); S += k d^T; o = S^T q.
    """
    state, outputs = state.copy(), np.empty_like(v)
    for t in range(len(q)):
        state *= np.exp(g[t])[:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hkd,hk->hd", state, k[t]))
        state += k[t][:, :, None] * d[:, None, :]
        outputs[t] = np.einsum("hkd,hk->hd", state, q[t])
    return outputs, state


def chunked(
    q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats, size: int = 64
) -> tuple[Floats, Floats]:
    """As `recurrence`, a chunk at a time: equal in real arithmetic, not bit for bit."""
    outputs = np.empty_like(v)
    for begin in range(0, len(q), size):
        part = slice(begin, begin + size)
        for h in range(v.shape[1]):
            outputs[part, h], state_h = _chunk(
                q[part, h], k[part, h], v[part, h], g[part, h], beta[part, h], state[h]
            )
            state = state.copy() if begin == 0 and h == 0 else state
            state[h] = state_h
    return outputs, state


def _chunk(
    q: Floats, k: Floats, v: Floats, g: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    total = np.cumsum(g)
    between = np.exp(np.minimum(total[:, None] - total[None, :], 0.0))
    below = np.tril(beta[:, None] * between * (k @ k.T), -1)
    solve = np.linalg.inv(np.eye(len(g)) + below)
    fresh = solve @ (beta[:, None] * v) - solve @ ((beta * np.exp(total))[:, None] * k) @ state
    out = np.exp(total)[:, None] * (q @ state) + np.tril(between * (q @ k.T)) @ fresh
    state = np.exp(total[-1]) * state + (np.exp(total[-1] - total)[:, None] * k).T @ fresh
    return out, state


def causal_conv(u: Floats, w: Floats, state: Floats) -> Floats:
    """silu of a depthwise convolution over each channel's newest inputs.

    Shapes: u [T,D] inputs, w [D,C], state [D,C-1] older inputs, oldest first -> [T,D].
    """
    taps = w.shape[1]
    history = np.concatenate([state.T, u])
    y = sum(history[j : j + len(u)] * w[:, j] for j in range(taps))
    return np.asarray(y / (1.0 + np.exp(-y)))


def conv_tail(u: Floats, state: Floats) -> Floats:
    """The newest C-1 inputs of every channel after u, oldest first. [D,C-1]."""
    return np.ascontiguousarray(np.concatenate([state.T, u])[len(u) :].T)


def gated_delta_conv(u: Floats, w: Floats, state: Floats) -> Bounded:
    """As `causal_conv`. Magnitude: 1.1 sum |w u| + |y|, since silu's slope stays below 1.1."""
    y = causal_conv(u, w, state)
    history = np.abs(np.concatenate([state.T, u]))
    terms = sum(history[j : j + len(u)] * np.abs(w[:, j]) for j in range(w.shape[1]))
    return Bounded(y, 1.1 * terms + np.abs(y))


def gated_delta_tail(u: Floats, state: Floats) -> Floats:
    """As `conv_tail`."""
    return conv_tail(u, state)


def gated_delta_unit(x: Floats, *, gain: float, eps: float) -> Bounded:
    """Each head's lanes times gain / sqrt(sum of squares + eps). Magnitude: |y|."""
    y = x * gain / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)
    return Bounded(y, np.abs(y))


def gated_delta_decay(
    a: Floats, b: Floats, a_log: Floats, dt_bias: Floats
) -> dict[str, np.ndarray]:
    """The factor e^decay by which each head's state shrinks, and beta = sigmoid(b). [T,H]."""
    return {"factor": np.exp(decay(a, a_log, dt_bias)), "beta": 1.0 / (1.0 + np.exp(-b))}


def gated_delta_scan(
    q: Floats, k: Floats, v: Floats, factor: Floats, beta: Floats, state: Floats
) -> dict[str, Bounded]:
    """As `recurrence`, with states [H,D,K] and key heads shared by neighbouring value heads.

    Magnitude: the same recurrence over absolute values, where nothing cancels.
    """
    share = v.shape[1] // q.shape[1]
    q, k = np.repeat(q, share, axis=1), np.repeat(k, share, axis=1)
    s, m = state.copy(), np.abs(state)
    y, size = np.empty_like(v), np.empty_like(v)
    for t in range(len(q)):
        s, m = s * factor[t][:, None, None], m * np.abs(factor[t])[:, None, None]
        error = v[t] - np.einsum("hdk,hk->hd", s, k[t])
        loose = np.abs(v[t]) + np.einsum("hdk,hk->hd", m, np.abs(k[t]))
        s = s + (beta[t][:, None] * error)[..., None] * k[t][:, None, :]
        m = m + (np.abs(beta[t])[:, None] * loose)[..., None] * np.abs(k[t])[:, None, :]
        y[t] = np.einsum("hdk,hk->hd", s, q[t])
        size[t] = np.einsum("hdk,hk->hd", m, np.abs(q[t]))
    return {"y": Bounded(y, size), "after": Bounded(s, m)}
