"""Grouped-query attention of rows over a range of keys each."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats

Ints = npt.NDArray[np.int64]


def grouped_attention(q: Floats, k: Floats, v: Floats, visible: npt.NDArray[np.bool_]) -> Floats:
    """Softmax-weighted values; query head h reads key head h // (H/G), scale K^-1/2.

    Shapes: q [T,H,K], k [N,G,K], v [N,G,K], visible [T,N] -> [T,H,K].
    Rounds: nothing. A row that sees no key gives zeros.
    """
    return _attend(q, k, v, visible).value


def sdpa_full(q: Floats, k: Floats, v: Floats, last: Ints, scale: float) -> Bounded:
    """Row t sees the keys 0..last[t]-1. Shapes: q [T,H,K], k and v [N,G,K] -> [T,H,K]."""
    return sdpa_clip(q, k, v, np.zeros_like(last), last, scale)


def sdpa_scan(q: Floats, k: Floats, v: Floats, first: Ints, last: Ints, scale: float) -> Bounded:
    """Row t sees the keys first[t]..last[t]-1; the kernel walks the others too."""
    return sdpa_clip(q, k, v, first, last, scale)


def sdpa_clip(q: Floats, k: Floats, v: Floats, first: Ints, last: Ints, scale: float) -> Bounded:
    """Row t sees the keys first[t]..last[t]-1, clipped to 0..N.

    Magnitude: as the contract `softmax` asks, sum (p + tiny)(1 + A)(|v| + |o|).
    """
    keys = np.arange(len(k))
    visible = (keys >= first[:, None]) & (keys < last[:, None])
    return _attend(q, k, v, visible, scale)


def _attend(
    q: Floats, k: Floats, v: Floats, visible: npt.NDArray[np.bool_], scale: float | None = None
) -> Bounded:
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = visible[:, None, :]
    scores = np.where(mask, np.einsum("thk,nhk->thn", q, k) * scale, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.where(mask, np.exp(scores - top), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    p = np.where(np.isnan(total), np.nan, p)
    out = _weighted(p, v, visible)
    loose = np.einsum("thk,nhk->thn", np.abs(q), np.abs(k)) * scale + np.abs(
        np.where(mask, scores - top, 0.0)
    )
    share_of = np.where(mask, (p + np.finfo(np.float32).tiny) * (1 + loose), 0.0)
    magnitude = _weighted(share_of, np.abs(v), visible)
    magnitude += share_of.sum(axis=-1, keepdims=True) * np.abs(out)
    return Bounded(out, magnitude)


def _weighted(weights: Floats, v: Floats, visible: npt.NDArray[np.bool_]) -> Floats:
    """The values each row sees, under its weights; what it does not see may be NaN.

    Shapes: weights [T,H,N], v [N,H,K], visible [T,N] -> [T,H,K].
    """
    rows = zip(weights, visible, strict=True)
    return np.stack([np.einsum("hn,nhk->hk", w[:, seen], v[seen]) for w, seen in rows])
