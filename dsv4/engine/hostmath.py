"""The discontinuous and tiny parts of a step in float32 on the host.

They are what the path "device-hostmath" and the legacy path use, and what the kernels of the same
parts are measured against.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

_LINEAR_FROM = np.float32(20.0)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x), by the form that keeps its digits on either side of 0."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, np.float32(1.0)) / (np.float32(1.0) + e), np.float32)


def split_mixing(
    mix: Floats, scale: Floats, base: Floats, *, streams: int, iterations: int, eps: float
) -> tuple[Floats, Floats, Floats]:
    """(pre [T,M], post [T,M], comb [T,M,M]) from scaled mixes [T,(2+M)M].

    comb: a softmax of each row plus eps, columns over their sum, then iterations - 1 times rows and
    columns.
    """
    m, small = streams, np.float32(eps)
    pre = sigmoid(mix[:, :m] * scale[0] + base[:m]) + small
    post = np.float32(2.0) * sigmoid(mix[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    logits = (mix[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m)
    comb = np.exp(logits - logits.max(axis=2, keepdims=True))
    comb = comb / comb.sum(axis=2, keepdims=True) + small
    comb = comb / (comb.sum(axis=1, keepdims=True) + small)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + small)
        comb = comb / (comb.sum(axis=1, keepdims=True) + small)
    return pre, post, comb


def head_gate(mix: Floats, scale: Floats, base: Floats, *, eps: float) -> Floats:
    """The weights [T,M] that collapse the streams before a head."""
    return sigmoid(mix * scale[0] + base) + np.float32(eps)


def route(
    raw: Floats, active: int, scale: float, *, bias: Floats | None, chosen: Ids | None
) -> tuple[Ids, Floats, Ids]:
    """(expert ids [T,A], weights [T,A], slots by ascending id [T,A]) of raw gate products [T,E].

    chosen: the ids that a table names; otherwise the largest scores plus bias, ties to the lowest.
    """
    with np.errstate(over="ignore"):
        wide = raw.astype(np.float64)
        soft = np.where(raw > _LINEAR_FROM, wide, np.log1p(np.exp(np.minimum(wide, 50.0))))
    score = np.sqrt(soft).astype(np.float32)
    if chosen is None:
        assert bias is not None, "a layer without a table has a bias"
        chosen = np.argsort(-(score + bias), axis=1, kind="stable")[:, :active].astype(np.int32)
    picked = np.take_along_axis(score, chosen, axis=1)
    total = np.zeros(len(raw), np.float32)
    for slot in range(active):
        total += picked[:, slot]
    weights = picked / total[:, None] * np.float32(scale)
    order = np.argsort(chosen, axis=1, kind="stable").astype(np.int32)
    return chosen.astype(np.int32), weights, order


def select(score: Floats, visible: Ids, places: int, offset: int) -> Ids:
    """The largest visible scores of every row as offset + index, best first, -1 after them.

    Ties go to the lowest index; +0 and -0 are equal.
    """
    ids = np.full((len(score), places), -1, np.int32)
    for t, count in enumerate(np.minimum(visible, score.shape[1])):
        best = np.argsort(-(score[t, : max(0, count)] + 0.0), kind="stable")[:places]
        ids[t, : len(best)] = offset + best
    return ids
