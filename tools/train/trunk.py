"""The trunk: logits, taps and what training wants to know, for whole sequences at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import dropout, embedding

from dsv4.checkpoint.config import ModelConfig
from tools.train.attention import Setting, attention
from tools.train.experts import moe
from tools.train.laws import Law
from tools.train.operators import island, norm, rope_tables
from tools.train.parameters import Weights
from tools.train.streams import collapse, collapse_exit, expand, mixing


@dataclass(frozen=True, slots=True)
class Model:
    """Prepared weights under a law, and the rotation tables.

    dropout: the share of a sub-block's outputs that is dropped while training.
    """

    config: ModelConfig
    weights: Weights
    law: Law
    tables: tuple[torch.Tensor, torch.Tensor]
    sparse: bool = True
    dropout: float = 0.0

    def setting(self, length: int) -> Setting:
        """What the layers of one call over `length` positions share."""
        window, compressed = (table[:length] for table in self.tables)
        return Setting(self.config, self.law, window, compressed, self.sparse)


@dataclass(frozen=True, slots=True)
class Output:
    """Logits [B,T,V], taps [B,T,n*D], losses of the indexers, rows of each expert by block."""

    logits: torch.Tensor
    taps: torch.Tensor
    index_losses: tuple[torch.Tensor, ...]
    loads: dict[str, torch.Tensor]


def model_of(
    config: ModelConfig,
    weights: Weights,
    law: Law,
    *,
    tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    sparse: bool = True,
    dropout: float = 0.0,
) -> Model:
    """The model of prepared weights, on the device where they lie."""
    device = weights["embed"].device
    return Model(config, weights, law, tables or rope_tables(config, law, device), sparse, dropout)


def forward(model: Model, tokens: torch.Tensor) -> Output:
    """The trunk's output at every position.  Shapes: tokens [B,T]."""
    c, w, s = model.config, model.weights, model.setting(tokens.shape[1])
    state = embedding(tokens, w["embed"])[..., None, :].expand(-1, -1, c.hc_mult, -1)
    taps, losses, loads = [], [], {}
    for number in range(c.n_layers):
        at, ratio = f"layers.{number}.", c.compress_ratios[number]

        def attend(x: torch.Tensor, at: str = at, ratio: int = ratio) -> torch.Tensor:
            y, loss = attention(s, w, f"{at}attn.", ratio, x)
            if loss is not None:
                losses.append(loss)
            return y

        state, loads[at] = run_block(model, at, state, tokens, attend)
        if number in c.dspark_target_layer_ids:
            taps.append(state.mean(-2))
    tapped = torch.cat(taps, dim=-1) if taps else state.new_zeros(*tokens.shape, 0)
    return Output(exit_logits(model, "", state)[0], tapped, tuple(losses), loads)


def run_block(
    model: Model,
    at: str,
    state: torch.Tensor,
    tokens: torch.Tensor,
    attend: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the state after a block, rows of each expert).  Shapes: state [..,M,D], tokens [..]."""
    c, w = model.config, model.weights
    by = mixing(c, w, f"{at}hc_attn", state)
    x = norm(collapse(state, by.pre), w[f"{at}attn_norm"], c.norm_eps)
    state = expand(_dropped(model, attend(x)), state, by)
    by = mixing(c, w, f"{at}hc_ffn", state)
    x = norm(collapse(state, by.pre), w[f"{at}ffn_norm"], c.norm_eps)
    rows = x.reshape(-1, x.shape[-1])
    y, load = moe(c, w, model.law, f"{at}ffn.", rows, tokens.reshape(-1))
    return expand(_dropped(model, y.reshape(x.shape)), state, by), load


def exit_logits(model: Model, at: str, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, the collapsed rows before the norm) of the exit at "" or of the last stage."""
    w = model.weights
    hidden = collapse_exit(model.config, w, at, state)
    return island(norm(hidden, w[f"{at}norm"], model.config.norm_eps), w["head"]), hidden


def _dropped(model: Model, y: torch.Tensor) -> torch.Tensor:
    return dropout(y, model.dropout) if model.dropout else y
