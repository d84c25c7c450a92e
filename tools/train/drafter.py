"""DSpark: the drafter's stages on many anchors of whole sequences at once.

An anchor p is a newest committed position. Its B rows hold the token of p + 1 and noise tokens and
stand at p + 1 ... p + B; each stage lets them attend to the rows that it makes of the trunk's taps
at the last W positions up to p, and to each other without a causal order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from tools.train.attention import kv_rows, project_output, queries
from tools.train.operators import island, norm, product
from tools.train.trunk import Model, exit_logits, run_block


@dataclass(frozen=True, slots=True)
class Drafts:
    """logits [..,B,V] with the token bias, confidence [..,B] before a sigmoid, expert loads."""

    logits: torch.Tensor
    confidence: torch.Tensor
    loads: dict[str, torch.Tensor]


def draft_rows(
    model: Model, taps: torch.Tensor, anchors: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """(logits without the token bias, collapsed rows, loads) of every anchor's rows.

    Shapes: taps [S,T,n*D], anchors [S,A], tokens [S,A] of positions anchor + 1 ->
    [S,A,B,V], [S,A,B,D].
    """
    c, w, block = model.config, model.weights, model.config.dspark_block_size
    stream = norm(product(taps, w["mtp.0.main_proj"], model.law), w["mtp.0.main_norm"], c.norm_eps)
    ids = torch.full((*anchors.shape, block), c.dspark_noise_token_id, device=anchors.device)
    ids[..., 0] = tokens
    positions = anchors[..., None] + 1 + torch.arange(block, device=anchors.device)
    state = embedding(ids, w["embed"])[..., None, :].expand(*ids.shape, c.hc_mult, -1)
    loads = {}
    for stage in range(c.stages):
        at = f"mtp.{stage}."

        def attend(x: torch.Tensor, at: str = at) -> torch.Tensor:
            return _attend(model, f"{at}attn.", x, stream, anchors, positions)

        state, loads[at] = run_block(model, at, state, ids, attend)
    logits, hidden = exit_logits(model, f"mtp.{c.stages - 1}.", state)
    return logits, hidden, loads


def chained(
    model: Model, logits: torch.Tensor, hidden: torch.Tensor, before: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits with the bias of the token before each row, confidence).

    Shapes: logits [..,B,V], hidden [..,B,D], before [..,B].
    """
    w, last = model.weights, f"mtp.{model.config.stages - 1}."
    rows = embedding(before, w[f"{last}markov_head.markov_w1"])
    logits = logits + island(rows, w[f"{last}markov_head.markov_w2"])
    features = torch.cat([hidden, rows], dim=-1)
    return logits, island(features, w[f"{last}confidence_head.proj"]).squeeze(-1)


def draft(model: Model, taps: torch.Tensor, anchors: torch.Tensor, before: torch.Tensor) -> Drafts:
    """Every row's logits and confidence when the tokens before them are given.

    Shapes: taps [S,T,n*D], anchors [S,A], before [S,A,B]: tokens of positions anchor + 1 + i.
    """
    logits, hidden, loads = draft_rows(model, taps, anchors, before[..., 0])
    return Drafts(*chained(model, logits, hidden, before), loads)


def greedy(
    model: Model, taps: torch.Tensor, anchors: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens [..,B+1], logits [..,B,V], confidence [..,B]) when each row takes its best token."""
    logits, hidden, _ = draft_rows(model, taps, anchors, tokens)
    chain, biased, scores = [tokens], [], []
    for i in range(logits.shape[-2]):
        row, score = chained(model, logits[..., i, :], hidden[..., i, :], chain[-1])
        biased.append(row)
        scores.append(score)
        chain.append(row.argmax(-1))
    return torch.stack(chain, -1), torch.stack(biased, -2), torch.stack(scores, -1)


def _attend(
    model: Model,
    at: str,
    x: torch.Tensor,
    stream: torch.Tensor,
    anchors: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Shapes: x [S,A,B,D], stream [S,T,D], anchors [S,A], positions [S,A,B] -> [S,A,B,D]."""
    c, law, w = model.config, model.law, model.weights
    length = stream.shape[1]
    table = model.tables[0]
    s = model.setting(len(table))
    turns = table[positions]
    q, _ = queries(s, w, at, 0, x, turns)
    main = kv_rows(s, w, at, 0, stream, table[:length]).to(law.compute)
    own = kv_rows(s, w, at, 0, x, turns).to(law.compute)
    q = q.to(law.compute)
    scale = c.head_dim**-0.5
    key = torch.arange(length, device=x.device)
    newest = anchors[..., None]
    seen = (key <= newest) & (key > newest - c.window_size)
    far = torch.einsum("saihd,sjd->sahij", q, main).to(law.real) * scale
    far = far.masked_fill(~seen[:, :, None, None], -math.inf)
    near = torch.einsum("saihd,sajd->sahij", q, own).to(law.real) * scale
    sink = w[f"{at}attn_sink"][:, None, None].expand(*near.shape[:-1], 1)
    weights = torch.softmax(torch.cat([far, near, sink], dim=-1), dim=-1).to(law.compute)
    o = torch.einsum("sahij,sjd->saihd", weights[..., :length], main)
    o = o + torch.einsum("sahij,sajd->saihd", weights[..., length:-1], own)
    return project_output(s, w, at, o.to(law.real), turns)
