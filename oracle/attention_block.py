"""The attention sub-block: the parts that every form of it shares, and its stateless definition.

Stateless: the row at position p depends on the layer's inputs at positions 0..p only, through its
window and the compressed blocks that are complete at p. Nothing is remembered between calls.
"""

import numpy as np

from oracle import index_lists
from oracle.attention import sink_attention, sink_attention_tiled
from oracle.compressor import pool_blocks
from oracle.conditions import Conditions
from oracle.hadamard import hadamard
from oracle.indexer import index_scores
from oracle.topk import top_visible
from oracle.weights import Attention, Compressor, Indexer


def attention(
    cond: Conditions, a: Attention, x: np.ndarray, rows: np.ndarray | None = None
) -> np.ndarray:
    """The outputs of the given rows (all by default) from the inputs of all positions.

    Shapes: x [P,D], rows [T] -> [T,D].
    """
    positions = np.arange(len(x))
    rows = positions if rows is None else rows
    window = cond.config.window_size
    q, latent = queries(cond, a, x[rows], rows)
    kv = kv_rows(cond, a, x, positions)
    listed = index_lists.window_list(rows, window, min(len(x), window))
    if a.compressor is not None and len(x) >= a.ratio:
        blocks = np.arange(len(x) // a.ratio)
        kv = np.concatenate([kv, _compressed(cond, a, a.compressor, x, blocks, index=False)])
        if a.indexer is None:
            chosen = index_lists.block_list(rows, a.ratio, len(blocks))
        else:
            keys = _compressed(cond, a, a.indexer.compressor, x, blocks, index=True)
            chosen = select_blocks(cond, a.indexer, x[rows], latent, keys, rows, a.ratio)
        listed = np.concatenate([listed, index_lists.offset(chosen, len(x))], axis=1)
    return project_output(cond, a, attend(cond, a, q, kv, listed), rows)


def queries(
    cond: Conditions, a: Attention, x: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(rotated queries [T,H,d], the normalised latent [T,Rq] that the indexer uses too)."""
    latent = cond.norm(cond.linear(x, a.wq_a), a.q_norm)
    q = cond.linear(latent, a.wq_b).reshape(len(x), cond.config.n_heads, -1)
    return cond.rotate(cond.head_norm(q), positions, a.ratio), latent


def kv_rows(cond: Conditions, a: Attention, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The row of every token, key and value at once.  Shapes: x [T,D] -> [T,d]."""
    row = cond.norm(cond.linear(x, a.wkv), a.kv_norm)
    row = cond.rotate(row, positions, a.ratio)
    return cond.law.kv_lanes(row, cond.config.rope_head_dim)


def raw_rows(
    cond: Conditions, compressor: Compressor, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(kv, score) projections from which blocks are pooled; a float32 island."""
    return cond.linear(x, compressor.wkv), cond.linear(x, compressor.wgate)


def finish_blocks(
    cond: Conditions,
    compressor: Compressor,
    pooled: np.ndarray,
    blocks: np.ndarray,
    ratio: int,
    *,
    index: bool,
) -> np.ndarray:
    """Compressed rows as they are cached; index keys go through Hadamard and FP4 instead of FP8.

    Shapes: pooled [B,w], blocks [B] -> [B,w].  A block turns by its first position.
    """
    row = cond.norm(cond.law.rounded(pooled), compressor.norm)
    row = cond.rotate(row, blocks * ratio, ratio)
    if index:
        return _spread(cond, row)
    return cond.law.kv_lanes(row, cond.config.rope_head_dim)


def select_blocks(
    cond: Conditions,
    indexer: Indexer,
    x: np.ndarray,
    latent: np.ndarray,
    keys: np.ndarray,
    positions: np.ndarray,
    ratio: int,
) -> np.ndarray:
    """The blocks that each query attends to, best first, -1 where fewer are complete.

    Shapes: x [T,D], latent [T,Rq], keys [N,di] -> [T,min(Ki,N)].
    """
    c, law = cond.config, cond.law
    q = cond.linear(latent, indexer.wq_b).reshape(len(x), c.index_n_heads, -1)
    q = _spread(cond, cond.rotate(q, positions, ratio))
    weights = law.rounded(cond.linear(x, indexer.weights_proj) * c.index_scale)
    scores = index_scores(q, keys, weights, rounded=law.rounded)
    visible = index_lists.visible_blocks(positions, ratio)
    return top_visible(scores, visible, min(c.index_topk, len(keys)))


def attend(
    cond: Conditions, a: Attention, q: np.ndarray, kv: np.ndarray, listed: np.ndarray
) -> np.ndarray:
    """Sink attention in the law's evaluation order.  Shapes: [T,H,d], [N,d], [T,S] -> [T,H,d]."""
    law, scale = cond.law, cond.config.head_scale
    if law.single:
        o = sink_attention_tiled(q, kv, listed, a.sink, scale=scale, rounded=law.rounded)
        return law.rounded(o)
    return sink_attention(q, kv, listed, a.sink, scale=scale)


def project_output(
    cond: Conditions, a: Attention, o: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Heads turned back by their query's position, through wo_a by groups of heads, and wo_b.

    Shapes: o [T,H,d] -> [T,D].
    """
    o = cond.rotate(o, positions, a.ratio, inverse=True)
    groups = o.reshape(len(o), cond.config.o_groups, -1)
    return cond.linear(cond.linear(groups, a.wo_a).reshape(len(o), -1), a.wo_b)


def _compressed(
    cond: Conditions,
    a: Attention,
    compressor: Compressor,
    x: np.ndarray,
    blocks: np.ndarray,
    *,
    index: bool,
) -> np.ndarray:
    kv, score = raw_rows(cond, compressor, x[: len(blocks) * a.ratio])
    pooled = pool_blocks(kv, score, compressor.ape, overlap=a.indexer is not None)
    return finish_blocks(cond, compressor, pooled, blocks, a.ratio, index=index)


def _spread(cond: Conditions, x: np.ndarray) -> np.ndarray:
    """Index lanes through the Hadamard transform and FP4."""
    width = x.shape[-1]
    turned = hadamard(x.reshape(-1, width), width**-0.5).value.reshape(x.shape)
    return cond.law.index_lanes(cond.law.rounded(turned.astype(x.dtype, copy=False)))
