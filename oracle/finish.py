"""What follows the products of a layer's front, composed of the single oracles.

A step's error enters the next one: see `oracle.finish_error`. Outputs that may not be off at all,
such as rows that nobody writes, have magnitude 0.
"""

from __future__ import annotations

import numpy as np

from oracle.bounded import Bounded
from oracle.compressor import compressor_pool_at
from oracle.finish_error import Carried, index_row, key_row, normed, pool_error
from oracle.formats import Floats
from oracle.movement import Ids, movement_scatter
from oracle.rms_norm import rms_norm_f32

Outputs = dict[str, Bounded]


def finish_window(
    latent: Floats,
    q_gain: Floats,
    kv: Floats,
    kv_gain: Floats,
    table: Floats,
    positions: Ids,
    ring_rows: Ids,
    kvc: Floats,
    *,
    ring: int,
    eps: float,
    clamp_only: int,
) -> Outputs:
    """The latent normalised; keys normalised, turned, quantised, and put into their ring.

    Shapes: latent [T,Q], kv [T,K], table [P,R], kvc [N,K] of which `ring` rows are the ring.
    Rounds: keys to FP8, per 64 lanes before the R that turn.
    Source: q_norm, kv_norm, and the cache of keys that are values too.
    """
    rows = normed(kv, np.zeros_like(kv), kv_gain, eps)
    rows = key_row(rows, table, positions, clamp_only)
    there = np.where((ring_rows >= 0) & (ring_rows < ring), ring_rows, -1)
    return {
        "compact": rms_norm_f32(latent, q_gain, eps=eps),
        "kvc": _placed(rows, there, Bounded(kvc, np.zeros_like(kvc))),
    }


def finish_blocks(
    latent: Floats,
    q_gain: Floats,
    kv: Floats,
    kv_gain: Floats,
    table: Floats,
    positions: Ids,
    ring_rows: Ids,
    raw_kv: Floats,
    raw_score: Floats,
    ape: Floats,
    gain: Floats,
    firsts: Ids,
    index_rows: Ids,
    kvc: Floats,
    *,
    ring: int,
    eps: float,
    clamp_only: int,
    overlap: int = 0,
) -> Outputs:
    """As `finish_window`; and the blocks that end at the rows, pooled, then finished like keys.

    Shapes: raw_kv, raw_score [S,c*K], ape [C,c*K], firsts and index_rows [T] -> kvc.
    """
    made = finish_window(
        latent, q_gain, kv, kv_gain, table, positions, ring_rows, kvc,
        ring=ring, eps=eps, clamp_only=clamp_only,
    )  # fmt: skip
    rows = _pooled(raw_kv, raw_score, ape, gain, positions, eps, overlap)
    rows = key_row(rows, table, firsts, clamp_only)
    places = _ending(positions, index_rows, len(ape), len(kvc) - ring)
    places = np.where(places < 0, -1, places + ring)
    return {**made, "kvc": _placed(rows, places, made["kvc"])}


def finish_indexed(
    latent: Floats,
    q_gain: Floats,
    kv: Floats,
    kv_gain: Floats,
    table: Floats,
    positions: Ids,
    ring_rows: Ids,
    raw_kv: Floats,
    raw_score: Floats,
    ape: Floats,
    gain: Floats,
    firsts: Ids,
    index_rows: Ids,
    index_kv: Floats,
    index_score: Floats,
    index_ape: Floats,
    index_gain: Floats,
    kvc: Floats,
    keys: Floats,
    *,
    ring: int,
    scale: float,
    eps: float,
    clamp_only: int,
) -> Outputs:
    """As `finish_blocks` with overlapping blocks; and the indexer's keys of the same blocks.

    Shapes: index_kv, index_score [S,2I], index_ape [C,2I], keys [B,I].
    Rounds: index keys to FP4, per 32 lanes, after the Hadamard transform.
    """
    made = finish_blocks(
        latent, q_gain, kv, kv_gain, table, positions, ring_rows, raw_kv, raw_score, ape, gain,
        firsts, index_rows, kvc, ring=ring, eps=eps, clamp_only=clamp_only, overlap=1,
    )  # fmt: skip
    rows = _pooled(index_kv, index_score, index_ape, index_gain, positions, eps, 1)
    rows = index_row(rows, table, firsts, scale)
    places = _ending(positions, index_rows, len(index_ape), len(keys))
    return {**made, "keys": _placed(rows, places, Bounded(keys, np.zeros_like(keys)))}


def _pooled(
    kv: Floats,
    score: Floats,
    ape: Floats,
    gain: Floats,
    positions: Ids,
    eps: float,
    overlap: int,
) -> Carried:
    pooled = compressor_pool_at(kv, score, ape, positions, len(kv), overlap)
    return normed(pooled.value, pool_error(pooled, (1 + overlap) * len(ape)), gain, eps)


def _ending(positions: Ids, places: Ids, ratio: int, limit: int) -> Ids:
    """Where the rows that end a block go, -1 for the others."""
    ends = (positions >= ratio - 1) & ((positions + 1) % ratio == 0)
    return np.asarray(np.where(ends & (places >= 0) & (places < limit), places, -1))


def _placed(rows: Carried, places: Ids, store: Bounded) -> Bounded:
    counted = rows.counted
    return Bounded(
        movement_scatter(counted.value, places, store.value),
        movement_scatter(counted.magnitude, places, store.magnitude),
    )
