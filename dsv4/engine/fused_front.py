"""The front of a layer in two launches: all products of its input, then all that finishes them.

And one at the beginning of a step: where its rows lie, and what they see, in layers of every ratio.

What they leave is what the single launches of `attention` and `compress` leave, byte for byte: the
queries' latent, the rows' keys and the blocks that they end in the cache, and what the indexer
weighs its heads with. The first of them also makes the coefficients that were left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.engine.rows import Rows, Schedule
from dsv4.engine.state import CompressorCache, LayerCache
from dsv4.engine.streams import Mixing
from dsv4.engine.weights import CompressorWeights, LayerWeights
from dsv4.kernels.finish import finish_blocks, finish_indexed, finish_window
from dsv4.kernels.project import project_blocks, project_indexed, project_window
from dsv4.kernels.step_rows import step_rows
from dsv4.spec import BF16, I32


@dataclass(frozen=True, slots=True)
class Front:
    """What a layer's front leaves beside the cache.

    compact: the queries' latent as products take it, bf16 [T,Rq]. weights: of the indexer's heads,
    f32 [T,Hi], or None without an indexer.
    """

    compact: Any
    weights: Any


def place_rows(run: Rows, caches: Mapping[int, LayerCache]) -> None:
    """Schedules and lists of the rows in all layers of the stage, by one launch.

    caches: of all layers, by number.
    """
    c = run.config
    layers = {w.ratio: w for w in run.stage.layers}
    if not layers:
        return
    rules, columns = [], {}
    for ratio, w in layers.items():
        cache = caches[w.layer]
        rules.append((cache.ring, cache.raw, ratio, cache.ring, int(w.indexer is not None)))
        columns[ratio] = list_columns(run, w, cache)
    shape = (len(layers), run.rows, max(columns.values()))
    places = run.workspace.fixed("step places", len(layers), 7, run.rows, fmt=I32)
    ids = run.workspace.fixed("step ids", *shape, fmt=I32)
    with run.phase("lists"):
        run.tape.launch(
            step_rows, run.control[:1], run.workspace.constant("rules", np.array(rules, np.int32)),
            places=places, ids=ids, window=c.window_size,
        )  # fmt: skip
    for g, ratio in enumerate(layers):
        run.schedules[ratio] = Schedule(*(places[g, k] for k in range(7)))
        run.lists[ratio] = ids[g, :, : columns[ratio]]


def list_columns(run: Rows, w: LayerWeights, cache: LayerCache) -> int:
    """How many rows a row attends to at most: its window, and blocks, or those that are chosen."""
    if w.compressor is None:
        return run.config.window_size
    blocks = min(run.blocks_of(w.ratio), cache.cap)
    chosen = blocks if w.indexer is None else min(run.config.index_topk, blocks)
    return run.config.window_size + chosen


def front(
    run: Rows, w: LayerWeights, cache: LayerCache, x: Any, when: Schedule, mixing: Mixing
) -> Front:
    """What the input x [T,D] leaves; keys and blocks are in the cache then, mixing is closed."""
    assert mixing.open is not None, "a fused step leaves coefficients open"
    c, hyper = run.config, mixing.open.hyper
    raw, kv = run.buffer("latent raw", c.q_lora_rank), run.buffer("kv raw", c.head_dim)
    compact = run.buffer("latent bf16", c.q_lora_rank, fmt=BF16)
    q, k = w.wq_a.ref, w.wkv.ref
    products = (x, q.codes, q.scales, k.codes, k.scales, mixing.open.mix, hyper.scale, hyper.base)
    made = dict(
        latent=raw, kv=kv, post=mixing.post, comb=mixing.comb, eps=c.hc_eps,
        iterations=c.hc_sinkhorn_iters,
    )  # fmt: skip
    positions, places = when.positions, (when.firsts, when.index_rows)
    rows = (raw, w.q_norm, kv, w.kv_norm, run.stage.rope(w.ratio), positions, when.ring_rows)
    kept = dict(compact=compact, kvc=cache.kvc)
    named = dict(ring=cache.ring, eps=c.norm_eps, **run.scalar_options())
    if w.compressor is None or cache.main is None:
        with run.phase("queries"):
            run.tape.launch(project_window, *products, **made)
        with run.phase("keys"):
            run.tape.launch(finish_window, *rows, **kept, **named)
        return Front(compact, None)
    pair, rings, blocks = _compressor(w.compressor, cache.main)
    if w.indexer is None or cache.index is None:
        with run.phase("queries"):
            run.tape.launch(project_blocks, *products, *pair, when.raw_rows, *rings, **made)
        with run.phase("keys"):
            run.tape.launch(finish_blocks, *rows, *blocks, *places, **kept, **named)
        return Front(compact, None)
    weights = run.buffer("index weights", c.index_n_heads)
    index_pair, index_rings, index_blocks = _compressor(w.indexer.compressor, cache.index)
    with run.phase("queries"):
        run.tape.launch(
            project_indexed, *products, *pair, *index_pair, w.indexer.weights_proj.ref.bf16,
            when.raw_rows, *rings, *index_rings, heads=weights, **made,
        )  # fmt: skip
    with run.phase("keys"):
        run.tape.launch(
            finish_indexed, *rows, *blocks, *places, *index_blocks, keys=cache.index_keys,
            scale=float(np.float32(c.index_head_dim**-0.5)), **kept, **named,
        )  # fmt: skip
    return Front(compact, weights)


_Arrays = tuple[Any, ...]


def _compressor(w: CompressorWeights, raw: CompressorCache) -> tuple[_Arrays, _Arrays, _Arrays]:
    """(its matrices, its rings, what a block is made of)."""
    rings = (raw.raw_kv, raw.raw_score)
    return (w.wkv, w.wgate), rings, (*rings, w.ape, w.norm)
