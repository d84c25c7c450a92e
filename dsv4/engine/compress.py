"""Compressed rows: raw projections into their ring, and the blocks that the rows complete."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine.products import island
from dsv4.engine.rows import Rows, Schedule
from dsv4.engine.state import CompressorCache, LayerCache
from dsv4.engine.streams import norm
from dsv4.engine.weights import CompressorWeights
from dsv4.kernels.act_quant import act_quant_fp4_inplace, act_quant_fp8_inplace
from dsv4.kernels.compressor import compressor_pool, compressor_pool_at
from dsv4.kernels.hadamard import hadamard
from dsv4.kernels.movement import movement_scatter, movement_scatter_bf16
from dsv4.kernels.rope import rope
from dsv4.spec import F32


def extend(
    run: Rows,
    w: CompressorWeights,
    cache: LayerCache,
    raw: CompressorCache,
    store: Any,
    x: Any,
    when: Schedule,
    *,
    index: bool,
) -> None:
    """Take the rows' inputs x [T,D] and store every block that they complete.

    store: rows by block. index: they are the indexer's keys, otherwise compressed rows.
    """
    kind = "index" if index else "main"
    channels = int(raw.raw_kv.shape[1])
    for matrix, ring in ((w.wkv, raw.raw_kv), (w.wgate, raw.raw_score)):
        made = run.buffer(f"{kind} raw", channels)
        island(run, x, matrix, made)
        run.tape.launch(movement_scatter, made, when.raw_rows, ring)
    pooled = _pooled(run, w, cache, raw, when, kind)
    if pooled is None:
        return
    raw_rows, firsts, places = pooled
    rows = run.workspace.rows_of(f"{kind} normed", len(raw_rows), w.width, fmt=F32)
    norm(run, raw_rows, w.norm, rows)
    table = run.stage.rope(w.ratio)
    run.tape.launch(rope, rows.reshape(len(rows), 1, w.width), table, firsts)
    if index:
        index_lanes(run, rows)
        kernel = movement_scatter if run.arms.index_format is F32 else movement_scatter_bf16
        run.tape.launch(kernel, rows, places, store)
        return
    if not run.smooth:
        lanes = w.width - run.config.rope_head_dim
        run.tape.launch(act_quant_fp8_inplace, rows, prefix=lanes, group=64, **run.scalar_options())
    run.tape.launch(movement_scatter, rows, places, store)


def index_lanes(run: Rows, x: Any) -> None:
    """Queries or keys [N,di] through the Hadamard transform and FP4, in place."""
    run.tape.launch(hadamard, x, scale=float(np.float32(run.config.index_head_dim**-0.5)))
    if not run.smooth:
        run.tape.launch(act_quant_fp4_inplace, x)


def _pooled(
    run: Rows,
    w: CompressorWeights,
    cache: LayerCache,
    raw: CompressorCache,
    when: Schedule,
    kind: str,
) -> tuple[Any, Any, Any] | None:
    """(pooled rows, their first positions, their places in the store); None for no block."""
    ring, overlap = cache.raw, int(w.overlap)
    if run.start is None:
        # Rows that end no block pool to zeros, and have no place.
        rows = run.buffer(f"{kind} pooled", w.width)
        run.tape.launch(
            compressor_pool_at, raw.raw_kv, raw.raw_score, w.ape, when.positions, out=rows,
            ring=ring, overlap=overlap,
        )  # fmt: skip
        return rows, when.firsts, when.index_rows
    begin, end = run.start // w.ratio, min((run.start + run.rows) // w.ratio, cache.cap)
    if end <= begin:
        return None
    rows = run.workspace.rows_of(f"{kind} pooled", end - begin, w.width, fmt=F32)
    run.tape.launch(
        compressor_pool, raw.raw_kv, raw.raw_score, w.ape, out=rows, first=begin * w.ratio,
        ring=ring, previous=int(w.overlap and begin > 0), overlap=overlap,
    )  # fmt: skip
    blocks = np.arange(begin, end)
    return rows, run.numbers(blocks * w.ratio), run.numbers(blocks)
