"""A step's attention in few launches, with the bytes of those that each of them stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.checkpoint.config import ModelConfig
from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.products import product
from dsv4.engine.rows import Rows, Schedule
from dsv4.engine.state import LayerCache
from dsv4.engine.weights import LayerWeights
from dsv4.kernels.attention import CHUNK
from dsv4.kernels.attention_decode import SHARE, TICKETS, attention_decode
from dsv4.kernels.indexer_select import BINS, LIST, indexer_select
from dsv4.kernels.linear_fp8 import linear_fp8_grouped_bf16
from dsv4.kernels.queries import queries_fp8
from dsv4.spec import BF16, F32, I32, I64


def index_fits(c: ModelConfig) -> bool:
    """Whether an indexer of these sizes has fused launches, as every published one does."""
    return (
        c.index_head_dim in (32, 64, 128)
        and c.index_n_heads <= 64
        and c.index_topk <= 1024
        and c.q_lora_rank <= 1024
        and c.n_heads * c.head_dim % 32 == 0
    )


def joint_queries(run: Rows, w: LayerWeights, compact: Any, when: Schedule) -> tuple[Any, Any]:
    """(queries [T,H,d] before their norm, the indexer's finished queries [T,Hi,di]) of a latent."""
    c, index = run.config, w.indexer
    assert index is not None, "only a layer with an indexer has both"
    heads = run.buffer("q", c.n_heads, c.head_dim)
    query = run.buffer("index q", c.index_n_heads, c.index_head_dim, fmt=BF16)
    run.tape.launch(
        queries_fp8, w.wq_b.ref.codes, w.wq_b.ref.scales, index.wq_b.ref.codes,
        index.wq_b.ref.scales, compact, run.stage.rope(w.ratio), when.positions,
        y=heads.reshape(run.rows, -1), index_q=query,
        scale=float(np.float32(c.index_head_dim**-0.5)),
    )  # fmt: skip
    return heads, query


def choose(
    run: Rows, keys: Any, query: Any, weights: Any, when: Schedule, ids: Any, offset: int
) -> None:
    """The places of the blocks that queries [T,Hi,di] see most in keys [N,di], into ids [T,S]."""
    c, space = run.config, run.workspace
    run.tape.launch(
        indexer_select, query, keys, weights, when.blocks,
        space.filled("index bins", 0, VERIFY_ROWS, BINS, fmt=I32)[: run.rows],
        space.filled("index list", 0, VERIFY_ROWS, LIST, fmt=I64)[: run.rows],
        space.filled("index tickets", 0, VERIFY_ROWS, 2, fmt=I32)[: run.rows],
        score=run.buffer("score", len(keys)), ids=ids, nans=run.buffer("score nans", fmt=I32),
        wscale=float(np.float32(c.index_head_dim**-0.5 * c.index_n_heads**-0.5)), offset=offset,
    )  # fmt: skip


def attend_and_project(
    run: Rows, w: LayerWeights, cache: LayerCache, heads: Any, ids: Any, when: Schedule, out: Any
) -> Any:
    """out [T,D]: heads [T,H,d] before their norm over the listed rows, projected."""
    c = run.config
    chunks, shares = -(-int(ids.shape[1]) // CHUNK), -(-c.n_heads // SHARE)
    o = run.buffer("o bf16", c.n_heads, c.head_dim, fmt=BF16)
    space = run.workspace
    tickets = space.filled("attention tickets", 0, space.rows, shares, TICKETS, fmt=I32)
    with run.phase("attention"):
        run.tape.launch(
            attention_decode, heads, cache.kvc, ids, w.sink, run.stage.rope(w.ratio),
            when.positions, tickets[: run.rows], o=o,
            power=run.buffer("chunk power", chunks, c.n_heads, fmt=F32),
            total=run.buffer("chunk total", chunks, c.n_heads, fmt=F32),
            value=run.buffer("chunk value", chunks, c.n_heads, c.head_dim, fmt=F32),
            scale=c.head_dim**-0.5, eps=c.norm_eps,
        )  # fmt: skip
    with run.phase("output"):
        grouped = run.buffer("grouped bf16", c.o_groups * c.o_lora_rank, fmt=BF16)
        run.tape.launch(
            linear_fp8_grouped_bf16, w.wo_a.ref.codes, w.wo_a.ref.scales,
            o.reshape(run.rows, -1), out=grouped, group=w.wo_a.rows // c.o_groups,
        )  # fmt: skip
        return product(run, w.wo_b, grouped, out)
