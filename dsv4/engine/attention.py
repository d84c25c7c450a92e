"""The attention sub-block on some rows: queries, cached rows, blocks, lists, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine import fused_attention, hostmath
from dsv4.engine.compress import extend, index_lanes
from dsv4.engine.fused_attention import index_fits, joint_queries
from dsv4.engine.fused_front import front, list_columns
from dsv4.engine.products import grouped_product, product, product_input
from dsv4.engine.rows import Rows, Schedule
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import Mixing, close, norm
from dsv4.engine.weights import IndexerWeights, LayerWeights
from dsv4.kernels.act_quant import act_quant_fp8_inplace
from dsv4.kernels.attention import (
    CHUNK,
    attention_sink,
    attention_sink_f32,
    attention_sink_join,
    attention_sink_join_f32,
    attention_sink_split,
    attention_sink_split_f32,
)
from dsv4.kernels.cast import cast_bf16
from dsv4.kernels.index_lists import index_lists_window
from dsv4.kernels.indexer import indexer_score, indexer_score_f32
from dsv4.kernels.movement import movement_scatter
from dsv4.kernels.rms_norm import rms_norm_head, rms_norm_head_f32
from dsv4.kernels.rope import rope
from dsv4.kernels.topk import topk
from dsv4.spec import BF16, F32, F64, I32


def attention(
    run: Rows, w: LayerWeights, cache: LayerCache, x: Any, out: Any, mixing: Mixing
) -> Any:
    """out [T,D]: attention of the rows over their windows and blocks; the cache moves on.

    mixing: how out comes back into the streams; closed then.

    The order inside is binding: rows are cached and blocks completed before anything is listed, so
    a row sees itself and the block that it ends.
    """
    c, when = run.config, run.schedule(w.ratio, cache.ring, cache.raw)
    if run.fused:
        made = front(run, w, cache, x, when, mixing)
        heads, query = joined_heads(run, w, made.compact, when)
    else:
        close(run, mixing)
        given, heads, query = _in_parts(run, w, cache, x, when)
    columns = list_columns(run, w, cache)
    with run.phase("lists"):
        ids = _listed(run, w, cache, when, columns)
    if w.indexer is not None and columns > c.window_size:
        with run.phase("indexer"):
            weights = made.weights if run.fused else _head_weights(run, w.indexer, x, given)
            _choose(run, cache, query, weights, when, ids[:, c.window_size :])
    return attend_and_project(run, w, cache, heads, ids, when, out)


def _in_parts(
    run: Rows, w: LayerWeights, cache: LayerCache, x: Any, when: Schedule
) -> tuple[Any, Any, Any]:
    """(x as products take it, rotated queries, the indexer's); the cache moves on."""
    with run.phase("queries"):
        given = product_input(run, "x", x)
    with run.beside(1):
        heads, query = queries(run, w, given, when)
    with run.beside(2), run.phase("keys"):
        run.look("kv", cache_rows(run, w, cache.kvc[: cache.ring], given, when))
    if w.indexer is not None and cache.index is not None:
        with run.beside(3), run.phase("indexer"):
            keys = cache.index_keys
            extend(run, w.indexer.compressor, cache, cache.index, keys, x, when, index=True)
    if w.compressor is not None and cache.main is not None:
        with run.beside(4), run.phase("compressor"):
            behind = cache.kvc[cache.ring :]
            extend(run, w.compressor, cache, cache.main, behind, x, when, index=False)
    return given, heads, query


def queries(run: Rows, w: LayerWeights, given: Any, when: Schedule) -> tuple[Any, Any]:
    """What `joined_heads` makes of a product's input."""
    c = run.config
    with run.phase("queries"):
        latent = run.buffer("latent", c.q_lora_rank)
        raw = product(run, w.wq_a, given, run.buffer("latent raw", c.q_lora_rank))
        norm(run, raw, w.q_norm, latent)
        compact = product_input(run, "latent", latent)
    return joined_heads(run, w, compact, when)


def joined_heads(run: Rows, w: LayerWeights, compact: Any, when: Schedule) -> tuple[Any, Any]:
    """(queries [T,H,d], the indexer's [T,Hi,di] or None) of their latent as products take it.

    Normalised and rotated, but in fused launches: there attention does that to the first.
    """
    c, table = run.config, run.stage.rope(w.ratio)
    with run.phase("queries"):
        if run.fused and w.indexer is not None and index_fits(c):
            return joint_queries(run, w, compact, when)
        q = run.buffer("q", c.n_heads * c.head_dim)
        product(run, w.wq_b, compact, q)
        heads = q.reshape(run.rows, c.n_heads, c.head_dim)
        if not run.fused:
            kernel = rms_norm_head_f32 if run.arms.chains_f32 else rms_norm_head
            run.tape.launch(kernel, heads, eps=c.norm_eps)
            run.tape.launch(rope, heads, table, when.positions)
        run.look("q", heads)
    if w.indexer is None:
        return heads, None
    with run.phase("indexer"):
        return heads, _index_queries(run, w.indexer, compact, table, when)


def attend_and_project(
    run: Rows, w: LayerWeights, cache: LayerCache, heads: Any, ids: Any, when: Schedule, out: Any
) -> Any:
    """out [T,D]: the heads of `queries` over the listed rows, turned back and projected."""
    if run.fused:
        return fused_attention.attend_and_project(run, w, cache, heads, ids, when, out)
    c = run.config
    with run.phase("attention"):
        o = run.buffer("o", c.n_heads, c.head_dim)
        _attend(run, heads, cache.kvc, ids, w.sink, o)
        run.look("o", o)
        run.tape.launch(rope, o, run.stage.rope(w.ratio), when.positions, inverse=1)
    with run.phase("output"):
        grouped = run.buffer("grouped", c.o_groups * c.o_lora_rank)
        grouped_product(run, w.wo_a, o.reshape(run.rows, -1), c.o_groups, grouped)
        return product(run, w.wo_b, product_input(run, "grouped", grouped), out)


def cache_rows(run: Rows, w: LayerWeights, store: Any, given: Any, when: Schedule) -> Any:
    """The rows' keys and values [T,d], normalised, rotated, quantised, written into the store."""
    c = run.config
    row = run.buffer("kv", c.head_dim)
    norm(run, product(run, w.wkv, given, run.buffer("kv raw", c.head_dim)), w.kv_norm, row)
    run.tape.launch(
        rope, row.reshape(run.rows, 1, c.head_dim), run.stage.rope(w.ratio), when.positions
    )
    if not run.smooth:
        lanes = c.head_dim - c.rope_head_dim
        run.tape.launch(act_quant_fp8_inplace, row, prefix=lanes, group=64, **run.scalar_options())
    run.tape.launch(movement_scatter, row, when.ring_rows, store)
    return row


def _index_queries(run: Rows, w: IndexerWeights, compact: Any, table: Any, when: Schedule) -> Any:
    c = run.config
    q = run.buffer("index q", c.index_n_heads * c.index_head_dim)
    product(run, w.wq_b, compact, q)
    heads = q.reshape(run.rows, c.index_n_heads, c.index_head_dim)
    run.tape.launch(rope, heads, table, when.positions)
    index_lanes(run, heads.reshape(-1, c.index_head_dim))
    if run.arms.index_format is F32:
        return heads
    rounded = run.buffer("index q bf16", c.index_n_heads, c.index_head_dim, fmt=BF16)
    run.tape.launch(cast_bf16, heads.reshape(-1), out=rounded.reshape(-1))
    return rounded


def _head_weights(run: Rows, w: IndexerWeights, x: Any, given: Any) -> Any:
    """What the indexer weighs its heads with [T,Hi]."""
    plain = given
    if run.arms.dense_input_fp8:
        plain = product_input(run, "x plain", x, quantised=False)
    weights = run.buffer("index weights", run.config.index_n_heads)
    return product(run, w.weights_proj, plain, weights)


def _choose(
    run: Rows, cache: LayerCache, query: Any, weights: Any, when: Schedule, ids: Any
) -> None:
    """The indexer's blocks into the tail of the lists."""
    c, blocks = run.config, min(run.blocks_of(cache.ratio), cache.cap)
    if run.fused and index_fits(c):
        keys = cache.index_keys[:blocks]
        fused_attention.choose(run, keys, query, weights, when, ids, cache.ring)
        return
    score = run.buffer("score", blocks)
    run.tape.launch(
        indexer_score if run.arms.index_format is F32 else indexer_score_f32,
        query, cache.index_keys[:blocks], weights, when.blocks, out=score,
        wscale=float(np.float32(c.index_head_dim**-0.5 * c.index_n_heads**-0.5)),
    )  # fmt: skip
    run.look("index_score", score)
    if run.arms.decode_path.host_math:
        device, places, offset = run.stage.device, int(ids.shape[1]), cache.ring

        def select() -> None:
            chosen = hostmath.select(
                device.to_numpy(score), device.to_numpy(when.blocks), places, offset
            )
            with device.active():
                ids[...] = device.to_device(chosen)

        run.tape.call("host select", select)
        return
    nans = run.buffer("score nans", fmt=I32)
    run.tape.launch(topk, score, when.blocks, ids=ids, nans=nans, offset=cache.ring)


def _listed(run: Rows, w: LayerWeights, cache: LayerCache, when: Schedule, columns: int) -> Any:
    """The rows' lists [T,columns]; made once for all layers of a ratio.

    The tail of a layer with an indexer stays open: every layer of that ratio writes its own.
    """
    if w.ratio not in run.lists:
        ids = run.buffer(f"ids {w.ratio}", columns, fmt=I32)
        counts = when.blocks
        if w.indexer is not None:
            counts = run.workspace.filled("no blocks", -1, run.workspace.rows, fmt=I32)[: run.rows]
        run.tape.launch(
            index_lists_window, when.positions, counts, out=ids,
            window=run.config.window_size, ring=cache.ring, base=cache.ring,
        )  # fmt: skip
        run.lists[w.ratio] = ids
    return run.lists[w.ratio]


def _attend(run: Rows, q: Any, kv: Any, ids: Any, sink: Any, o: Any) -> None:
    """Sink attention; a few rows are cut into chunks to fill the device, with the same bytes."""
    c, single = run.config, run.arms.chains_f32
    scale = c.head_dim**-0.5
    if not run.few:
        kernel = attention_sink_f32 if single else attention_sink
        run.tape.launch(kernel, q, kv, ids, sink, out=o, scale=scale)
        return
    chunks, fmt = -(-int(ids.shape[1]) // CHUNK), F32 if single else F64
    power = run.buffer("chunk power", chunks, c.n_heads, fmt=fmt)
    total = run.buffer("chunk total", chunks, c.n_heads, fmt=fmt)
    value = run.buffer("chunk value", chunks, c.n_heads, c.head_dim, fmt=fmt)
    run.tape.launch(
        attention_sink_split_f32 if single else attention_sink_split,
        q, kv, ids, power=power, total=total, value=value, scale=scale,
    )  # fmt: skip
    join = attention_sink_join_f32 if single else attention_sink_join
    run.tape.launch(join, power, total, value, sink, out=o)
