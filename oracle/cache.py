"""What a sequence leaves behind in a layer, and attention that goes on from it.

A ring holds the last rows by position modulo its size, a store the compressed rows by block, and a
pending buffer the raw rows of the open block (and, with overlap, of the one before it). Raw rows
have no position bias yet; it is added when a block is pooled.
"""

from dataclasses import dataclass

import numpy as np

from oracle import index_lists
from oracle.attention_block import (
    attend,
    finish_blocks,
    kv_rows,
    project_output,
    queries,
    raw_rows,
    select_blocks,
)
from oracle.compressor import no_rows, pool_blocks
from oracle.conditions import Conditions
from oracle.config import ModelConfig
from oracle.weights import Attention, Compressor


@dataclass(slots=True)
class CompressorCache:
    """Compressed rows [cap,w] by block, and the raw rows of the open block.

    pending_kv, pending_score [c*r,c*w]: with overlap (c = 2) the block before, then the open
    block; rows of the open block that are not there yet keep what an earlier block left.
    """

    ratio: int
    overlap: bool
    index: bool
    store: np.ndarray
    pending_kv: np.ndarray
    pending_score: np.ndarray

    def extend(self, cond: Conditions, compressor: Compressor, x: np.ndarray, start: int) -> None:
        """Take the inputs of positions start.. and store every block that they complete."""
        kv, score = raw_rows(cond, compressor, x)
        ratio, first, held = self.ratio, start // self.ratio, start % self.ratio
        blocks = np.arange(first, (start + len(x)) // ratio)
        open_row = ratio if self.overlap else 0
        kept = slice(open_row, open_row + held)
        rows_kv = np.concatenate([self.pending_kv[kept], kv])
        rows_score = np.concatenate([self.pending_score[kept], score])
        if len(blocks):
            whole = len(blocks) * ratio
            pooled = pool_blocks(
                rows_kv[:whole],
                rows_score[:whole],
                compressor.ape,
                overlap=self.overlap,
                previous=(self.pending_kv[:ratio], self.pending_score[:ratio]),
            )
            self.store[blocks] = finish_blocks(
                cond, compressor, pooled, blocks, ratio, index=self.index
            )
            if self.overlap:
                self.pending_kv[:ratio] = rows_kv[whole - ratio : whole]
                self.pending_score[:ratio] = rows_score[whole - ratio : whole]
        recent = np.arange(max(0, len(x) - ratio), len(x))
        places = open_row + (start + recent) % ratio
        self.pending_kv[places], self.pending_score[places] = kv[recent], score[recent]

    def reset(self) -> None:
        """Forget the sequence: nothing precedes the next block 0."""
        self.store[:] = 0.0
        self.pending_kv[:] = 0.0
        self.pending_score[:] = -np.inf


@dataclass(slots=True)
class LayerCache:
    """One layer's ring [W,d], and its compressor's and indexer's caches where it has them."""

    ring: np.ndarray
    compressed: CompressorCache | None
    index: CompressorCache | None

    def reset(self) -> None:
        """Forget the sequence."""
        self.ring[:] = 0.0
        for cache in (self.compressed, self.index):
            if cache is not None:
                cache.reset()


def new_layer_cache(
    config: ModelConfig, ratio: int, capacity: int, real: type[np.floating]
) -> LayerCache:
    """An empty cache for sequences of up to `capacity` positions."""

    def compressor_cache(width: int, *, index: bool) -> CompressorCache:
        overlap = ratio == 4
        channels, rows = (2 * width, 2 * ratio) if overlap else (width, ratio)
        store = np.zeros((capacity // ratio, width), real)
        return CompressorCache(ratio, overlap, index, store, *no_rows(rows, channels, real))

    return LayerCache(
        ring=np.zeros((config.window_size, config.head_dim), real),
        compressed=compressor_cache(config.head_dim, index=False) if ratio else None,
        index=compressor_cache(config.index_head_dim, index=True) if ratio == 4 else None,
    )


def attention_step(
    cond: Conditions, a: Attention, x: np.ndarray, cache: LayerCache, start: int
) -> np.ndarray:
    """The outputs of positions start.. from their inputs and the cache, which moves on.

    Shapes: x [T,D] -> [T,D].
    A row sees the ring as it would be at its own time: rows of this call are looked up among
    themselves, because a later one may take the slot of an earlier one that is still visible.
    """
    window = cond.config.window_size
    positions = np.arange(start, start + len(x))
    q, latent = queries(cond, a, x, positions)
    kv = kv_rows(cond, a, x, positions)
    columns = window if start else min(len(x), window)
    listed = index_lists.window_list(positions, window, columns)
    listed = index_lists.redirect(listed, start, window, window)
    operand = [cache.ring, kv]
    blocks = (start + len(x)) // a.ratio if a.ratio else 0
    if a.compressor is not None and cache.compressed is not None:
        cache.compressed.extend(cond, a.compressor, x, start)
        chosen = index_lists.block_list(positions, a.ratio, blocks)
        if a.indexer is not None and cache.index is not None:
            cache.index.extend(cond, a.indexer.compressor, x, start)
            keys = cache.index.store[:blocks]
            chosen = select_blocks(cond, a.indexer, x, latent, keys, positions, a.ratio)
        operand.append(cache.compressed.store[:blocks])
        chosen = index_lists.offset(chosen, window + len(x))
        listed = np.concatenate([listed, chosen], axis=1)
    o = attend(cond, a, q, np.concatenate(operand), listed)
    recent = positions[-window:]
    cache.ring[recent % window] = kv[-window:]
    return project_output(cond, a, o, positions)
