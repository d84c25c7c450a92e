"""How far the roundings of the hyper-connection kernels may carry a result, to first order.

Every error here is a count of u = 2^-24, the unit roundoff of float32: a result that is off by at
most `error` * u. Errors of inputs pass through the exact derivative; every operation adds one
rounding of its own result; e^x adds 2.2 (1.1 spacings). `bounded` adds 2 in a hundred for what is
of second order, which is less while the errors stay below 10^5 u.
"""

import numpy as np

from oracle.bounded import Bounded

SUM_ROUNDINGS = 25
"""The longest way through a sum over the streams: 8 fused terms of a lane, a butterfly of 5, at
most 8 parts a lane and a butterfly of 5; the sum of a norm over up to 8192 lanes has 16 + 9."""

EXP = 2.2


def bounded(value: np.ndarray, error: np.ndarray) -> Bounded:
    """The value with a magnitude for a contract of depth 1."""
    return Bounded(value, 1.02 * error)


def logits_error(
    logits: np.ndarray, mix_error: np.ndarray, scale: np.ndarray | float
) -> np.ndarray:
    """Of mix * scale + base, fused, for mixes that are off themselves."""
    return np.asarray(mix_error * np.abs(scale) + np.abs(logits))


def sigmoid_error(value: np.ndarray, logit_error: np.ndarray) -> np.ndarray:
    """Of 1 / (1 + e^-z): the exponential, the sum and the division."""
    return np.asarray(value * (1.0 - value) * logit_error + (EXP + 2.0) * value)


def inverse_root_error(
    squares: np.ndarray, squares_error: np.ndarray, count: int, eps: float
) -> np.ndarray:
    """Of 1 / sqrt(squares / count + eps), relative: mean, eps, root and reciprocal."""
    return np.asarray(0.5 * squares_error / (squares + count * eps) + 0.5 + 0.5 + 1.0 + 1.0)


def sinkhorn_error(
    logits: np.ndarray, logit_error: np.ndarray, *, iterations: int, eps: float
) -> np.ndarray:
    """Of every entry of comb, relative.

    Shapes: logits, logit_error [T,M,M] -> [T,M,M].
    A normalisation divides entry i of a row by s = sum + eps: log i loses sum_j (entry_j / s) times
    the change of log j, which is its whole derivative. So the matrix `back` of derivatives of the
    final logs with respect to the logs after a step is walked backwards, and every step adds the
    roundings that enter there: one a division, and those of the sum, which a row shares.
    """
    m = logits.shape[-1]
    shifted = logits - logits.max(axis=2, keepdims=True)
    softmax = np.exp(shifted)
    softmax /= softmax.sum(axis=2, keepdims=True)
    entry = softmax + eps
    steps = []
    for axis in (1, *(2, 1) * (iterations - 1)):
        entry = entry / (entry.sum(axis=axis, keepdims=True) + eps)
        steps.append((axis + 1, entry))
    back = np.broadcast_to(np.eye(m * m).reshape(m * m, m, m), (len(logits), m * m, m, m))
    error = np.zeros((len(logits), m * m))
    for axis, result in reversed(steps):
        shared = back.sum(axis=axis, keepdims=True)
        error += _sum(back) + m * _sum(shared)
        back = back - shared * result[:, None]
    error += _sum(back)  # the addition of eps
    back = back * (softmax / (softmax + eps))[:, None]
    shared = back.sum(axis=3, keepdims=True)
    error += _sum(back) + (m - 1) * _sum(shared)
    back = back - shared * softmax[:, None]
    error += _sum(back * (logit_error + np.abs(shifted) + EXP)[:, None])
    return error.reshape(logits.shape)


def _sum(back: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(back).sum(axis=(2, 3)))
