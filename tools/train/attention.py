"""The attention sub-block on whole sequences: window, compressed blocks, indexer, sink.

The row at position p sees the last W rows up to its own and the compressed blocks complete at p:
all of them in coarse layers, the indexer's choice in fine ones. The window is computed in chunks
of W queries against their own and the previous chunk, so that memory grows with T * W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dsv4.checkpoint.config import ModelConfig
from tools.train.laws import Law
from tools.train.operators import hadamard, head_norm, island, norm, product, rotate
from tools.train.parameters import Weights


@dataclass(frozen=True, slots=True)
class Setting:
    """What every layer of one call shares: configuration, law, turns of both kinds of layers.

    Shapes: turns [T,R], row t for position t. sparse: whether fine layers attend to the indexer's
    choice, as the model does, or to all blocks, which is how training starts.
    """

    config: ModelConfig
    law: Law
    window_turns: torch.Tensor
    compressed_turns: torch.Tensor
    sparse: bool = True

    def turns(self, ratio: int) -> torch.Tensor:
        """The turns of a layer by its compress ratio."""
        return self.compressed_turns if ratio else self.window_turns


def attention(
    s: Setting, w: Weights, at: str, ratio: int, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(outputs, the indexer's loss in a fine layer while gradients are wanted).

    Shapes: x [B,T,D] -> [B,T,D].
    """
    c = s.config
    q, latent = queries(s, w, at, ratio, x, s.turns(ratio)[: x.shape[1]])
    kv = kv_rows(s, w, at, ratio, x, s.turns(ratio)[: x.shape[1]])
    rows = chosen = scores = None
    blocks = x.shape[1] // ratio if ratio else 0
    if blocks:
        rows = compressed_rows(s, w, f"{at}compressor.", ratio, x, index=False)
        chosen = visible_blocks(x.shape[1], blocks, ratio, x.device)
        if f"{at}indexer.wq_b" in w:
            scores = index_scores(s, w, at, ratio, x.detach(), latent.detach())
            scores = scores.masked_fill(~chosen, -math.inf)
            if s.sparse:
                chosen = chosen & best(scores.detach(), c.index_topk)
            else:
                chosen = chosen.expand_as(scores)
    o, mass = sink_attention(s, q, kv, rows, chosen, w[f"{at}attn_sink"])
    loss = None
    if scores is not None and chosen is not None and scores.requires_grad:
        loss = index_loss(scores, mass, chosen)
    return project_output(s, w, at, o, s.turns(ratio)[: x.shape[1]]), loss


def queries(
    s: Setting, w: Weights, at: str, ratio: int, x: torch.Tensor, turns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rotated queries [..,T,H,d], the normalised latent [..,T,Rq] that the indexer uses too)."""
    c, law = s.config, s.law
    latent = norm(product(x, w[f"{at}wq_a"], law), w[f"{at}q_norm"], c.norm_eps)
    q = product(latent, w[f"{at}wq_b"], law).unflatten(-1, (c.n_heads, c.head_dim))
    return rotate(head_norm(q, c.norm_eps), turns[..., None, :]), latent


def kv_rows(
    s: Setting, w: Weights, at: str, ratio: int, x: torch.Tensor, turns: torch.Tensor
) -> torch.Tensor:
    """The row of every token, key and value at once.  Shapes: x [..,T,D] -> [..,T,d]."""
    row = norm(product(x, w[f"{at}wkv"], s.law), w[f"{at}kv_norm"], s.config.norm_eps)
    return s.law.kv_lanes(rotate(row, turns), s.config.rope_head_dim)


def compressed_rows(
    s: Setting, w: Weights, at: str, ratio: int, x: torch.Tensor, *, index: bool
) -> torch.Tensor:
    """One row for each complete block.  Shapes: x [B,T,D] -> [B,T/r,w]."""
    blocks = x.shape[1] // ratio
    x = x[:, : blocks * ratio]
    values = island(x, w[f"{at}wkv"]).unflatten(1, (blocks, ratio))
    logits = island(x, w[f"{at}wgate"]).unflatten(1, (blocks, ratio)) + w[f"{at}ape"]
    gain = w[f"{at}norm"]
    if values.shape[-1] == 2 * gain.shape[0]:
        values, logits = overlapped(values, 0.0), overlapped(logits, -math.inf)
    pooled = (torch.softmax(logits, dim=2) * values).sum(2)
    row = norm(pooled, gain, s.config.norm_eps)
    row = rotate(row, s.turns(ratio)[: blocks * ratio : ratio])
    if index:
        return s.law.index_lanes(hadamard(row))
    return s.law.kv_lanes(row, s.config.rope_head_dim)


def overlapped(rows: torch.Tensor, absent: float) -> torch.Tensor:
    """The block before through the first half of the channels, then the block by the second.

    Shapes: [B,N,r,2w] -> [B,N,2r,w].
    """
    first, second = rows.chunk(2, dim=-1)
    before = torch.nn.functional.pad(first[:, :-1], (0, 0, 0, 0, 1, 0), value=absent)
    return torch.cat([before, second], dim=2)


def visible_blocks(length: int, blocks: int, ratio: int, device: torch.device) -> torch.Tensor:
    """Which blocks are complete at each position.  Shapes: -> [1,T,N]."""
    ends = (torch.arange(blocks, device=device) + 1) * ratio
    return (ends <= torch.arange(length, device=device)[:, None] + 1)[None]


def index_scores(
    s: Setting, w: Weights, at: str, ratio: int, x: torch.Tensor, latent: torch.Tensor
) -> torch.Tensor:
    """How much each block matters to each query, by the indexer.  Shapes: -> [B,T,N]."""
    c, law = s.config, s.law
    keys = compressed_rows(s, w, f"{at}indexer.compressor.", ratio, x, index=True)
    q = product(latent, w[f"{at}indexer.wq_b"], law)
    q = q.unflatten(-1, (c.index_n_heads, c.index_head_dim))
    q = law.index_lanes(hadamard(rotate(q, s.turns(ratio)[: x.shape[1], None, :])))
    weights = product(x, w[f"{at}indexer.weights_proj"], law)
    weights = weights * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
    products = torch.relu(torch.einsum("bthk,bnk->bthn", q, keys))
    return (weights[..., None] * products).sum(2)


def best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Which of the last axis are among the `count` largest; equals in ascending order."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True)[1][..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


def sink_attention(
    s: Setting,
    q: torch.Tensor,
    kv: torch.Tensor,
    rows: torch.Tensor | None,
    chosen: torch.Tensor | None,
    sink: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads' outputs, the weight of every block summed over heads, without a gradient).

    Shapes: q [B,T,H,d], kv [B,T,d], rows [B,N,d], chosen [B,T,N], sink [H] -> [B,T,H,d], [B,T,N].
    """
    batch, length, heads, _ = q.shape
    window = s.config.window_size
    chunks = -(-length // window)
    short = chunks * window - length
    pad = torch.nn.functional.pad
    q = pad(q, (0, 0, 0, 0, 0, short)).unflatten(1, (chunks, window)).to(s.law.compute)
    own = pad(kv, (0, 0, 0, short)).unflatten(1, (chunks, window)).to(s.law.compute)
    keys = torch.cat([pad(own[:, :-1], (0, 0, 0, 0, 1, 0)), own], dim=2)
    scale, real = s.config.head_dim**-0.5, s.law.real
    near = torch.einsum("bnihd,bnjd->bnhij", q, keys).to(real) * scale
    near = near.masked_fill(~_in_window(chunks, window, q.device)[:, None], -math.inf)
    parts = [near]
    if rows is not None and chosen is not None:
        rows = rows.to(s.law.compute)
        far = torch.einsum("bnihd,bjd->bnhij", q, rows).to(real) * scale
        seen = pad(chosen, (0, 0, 0, short)).unflatten(1, (chunks, window))
        parts.append(far.masked_fill(~seen[:, :, None], -math.inf))
    parts.append(sink[:, None, None].expand(batch, chunks, heads, window, 1))
    weights = torch.softmax(torch.cat(parts, dim=-1), dim=-1)
    near, far = weights[..., : 2 * window], weights[..., 2 * window : -1]
    o = torch.einsum("bnhij,bnjd->bnihd", near.to(s.law.compute), keys)
    if rows is not None:
        o = o + torch.einsum("bnhij,bjd->bnihd", far.to(s.law.compute), rows)
    mass = far.detach().sum(2).flatten(1, 2)[:, :length]
    return o.to(real).flatten(1, 2)[:, :length], mass


def _in_window(chunks: int, window: int, device: torch.device) -> torch.Tensor:
    """Which of two chunks' keys each query of the second sees.  Shapes: -> [n,W,2W]."""
    key = torch.arange(2 * window, device=device) - window
    query = torch.arange(window, device=device)[:, None]
    near = (key <= query) & (key > query - window)
    first = torch.arange(chunks, device=device)[:, None, None] == 0
    return near & ~(first & (key < 0))


def project_output(
    s: Setting, w: Weights, at: str, o: torch.Tensor, turns: torch.Tensor
) -> torch.Tensor:
    """Heads turned back by their query's position, through wo_a by groups, and wo_b.

    Shapes: o [..,T,H,d] -> [..,T,D].
    """
    c, law = s.config, s.law
    o = rotate(o, turns[..., None, :], inverse=True).flatten(-2).unflatten(-1, (c.o_groups, -1))
    by_group = w[f"{at}wo_a"].unflatten(0, (c.o_groups, c.o_lora_rank))
    groups = torch.einsum("...gk,grk->...gr", law.product_input(o).to(law.compute), by_group)
    return product(groups.to(law.real).flatten(-2), w[f"{at}wo_b"], law)


def index_loss(scores: torch.Tensor, mass: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The divergence of the indexer's softmax from where attention went, averaged over queries.

    Selection has no gradient, so the indexer is taught apart: the weights that all heads gave to
    the blocks in sight are its target, and no gradient leaves it for the rest of the model.
    """
    logs = torch.log_softmax(scores.masked_fill(~chosen, -math.inf), dim=-1)
    total = mass.sum(-1, keepdim=True)
    target = mass / total.clamp_min(1e-20)
    known = chosen & (target > 0)
    # 0 where nothing is known, and no infinity on the way back.
    gap = torch.where(known, target.clamp_min(1e-20).log() - logs.masked_fill(~known, 0.0), 0.0)
    rows = (total.squeeze(-1) > 1e-20).to(scores.dtype)
    return ((target * gap).sum(-1) * rows).sum() / rows.sum().clamp_min(1.0)
