"""Attention over listed rows that are key and value at once, with a sink in the denominator."""

from collections.abc import Callable

import numpy as np

from oracle.attention_sums import chunk_sums, joined_sums
from oracle.bounded import Bounded
from oracle.formats import FORMATS
from oracle.stages import StageProbe, unprobed


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
    return np.asarray(weights @ rows / total[..., None])


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
        value = value * fade[..., None] + rounded(weights) @ rows
        top = now
    with np.errstate(over="ignore"):  # a sink far above every row: the result is 0, as it should
        total = total + np.exp(sink - np.where(np.isfinite(top), top, 0.0))
    return np.asarray(value / total[..., None])


def attention_sink(
    q: np.ndarray,
    kv: np.ndarray,
    ids: np.ndarray,
    sink: np.ndarray,
    scale: float,
    probe: StageProbe = unprobed,
) -> Bounded:
    """`sink_attention` with its error magnitude; ids outside 0..N-1 are absent.

    Shapes: q [T,H,K], kv [N,K], ids [T,S], sink [H] -> [T,H,K].
    A row whose logits and sink are all -inf gives zeros, as one without entries does.
    """
    return bounded_attention(q, kv, ids, sink, scale, "f64", probe)


def attention_sink_f32(
    q: np.ndarray,
    kv: np.ndarray,
    ids: np.ndarray,
    sink: np.ndarray,
    scale: float,
    probe: StageProbe = unprobed,
) -> Bounded:
    """As `attention_sink`, for a kernel whose weights underflow where float32 does."""
    return bounded_attention(q, kv, ids, sink, scale, "f32", probe)


def attention_sink_split(
    q: np.ndarray, kv: np.ndarray, ids: np.ndarray, scale: float
) -> dict[str, Bounded]:
    """The sums of each chunk of a list, as `chunk_sums` defines them."""
    return chunk_sums(q, kv, present(ids, kv), scale, "f64")


def attention_sink_split_f32(
    q: np.ndarray, kv: np.ndarray, ids: np.ndarray, scale: float
) -> dict[str, Bounded]:
    """As `attention_sink_split`, in float32."""
    return chunk_sums(q, kv, present(ids, kv), scale, "f32")


def attention_sink_join(
    power: np.ndarray, total: np.ndarray, value: np.ndarray, sink: np.ndarray
) -> Bounded:
    """The chunks' sums and the sink as one softmax, as `joined_sums` defines it."""
    return joined_sums(power, total, value, sink, "f64")


def attention_sink_join_f32(
    power: np.ndarray, total: np.ndarray, value: np.ndarray, sink: np.ndarray
) -> Bounded:
    """As `attention_sink_join`, in float32."""
    return joined_sums(power, total, value, sink, "f32")


def bounded_attention(
    q: np.ndarray,
    kv: np.ndarray,
    ids: np.ndarray,
    sink: np.ndarray,
    scale: float,
    fmt: str,
    probe: StageProbe = unprobed,
    sizes: np.ndarray | None = None,
) -> Bounded:
    """`attention_sink`; weights underflow as in that format.

    sizes: what an error of q is relative to; |q| if not given. The magnitude is that of `softmax`
    in the contracts, and one underflow for each entry.
    """
    tiny = FORMATS[fmt].min_normal
    listed = present(ids, kv)
    rows = _gathered(kv, listed)
    logits = _logits(q, rows, listed, scale)
    top = np.maximum(logits.max(axis=2, initial=-np.inf), sink)
    _probe_logits(logits, listed, sink, top, probe)
    value = sink_attention(q, kv, listed, sink, scale=scale)
    value = np.where((top == -np.inf)[..., None], 0.0, value)
    weights = np.exp(logits - top[..., None])
    shares = weights / (weights.sum(axis=2) + np.exp(sink - top))[..., None]
    sizes = np.abs(q) if sizes is None else sizes
    reach = 1 + abs(scale) * np.einsum("thk,tsk->ths", sizes, np.abs(rows))
    shares = np.where(logits == -np.inf, 0.0, (shares + tiny) * reach)
    magnitude = np.einsum("ths,tsk->thk", shares, np.abs(rows))
    magnitude += shares.sum(axis=2)[..., None] * np.abs(value) + listed.shape[1] * tiny
    return Bounded(value, magnitude)


def _probe_logits(
    logits: np.ndarray, listed: np.ndarray, sink: np.ndarray, top: np.ndarray, probe: StageProbe
) -> None:
    """Logits by place among the present entries, NaN past the last; and what divides."""
    packed = np.full(logits.shape, np.nan)
    for t, entries in enumerate(listed >= 0):
        packed[t, :, : entries.sum()] = logits[t][:, entries]
    probe("logit", packed, "T H S")
    below = np.exp(logits - top[..., None]).sum(axis=2) + np.exp(sink - top)
    probe("log2_denominator", (np.log(below) + top) / np.log(2), "T H")


def present(ids: np.ndarray, kv: np.ndarray) -> np.ndarray:
    """The list with -1 for every entry that is no row of kv."""
    return np.where((ids >= 0) & (ids < len(kv)), ids, -1)


def _gathered(kv: np.ndarray, listed: np.ndarray) -> np.ndarray:
    rows = kv[np.maximum(listed, 0)] if len(kv) else np.zeros((*listed.shape, kv.shape[1]))
    # Absent entries weigh 0, and 0 times whatever row would stand in must not become NaN.
    return np.where((listed >= 0)[..., None], rows, 0.0).astype(kv.dtype, copy=False)


def _logits(q: np.ndarray, rows: np.ndarray, listed: np.ndarray, scale: float) -> np.ndarray:
    logits = q @ rows.transpose(0, 2, 1) * scale
    return np.where((listed >= 0)[:, None, :], logits, -np.inf).astype(q.dtype, copy=False)
