"""Hyper-connections: a token's M residual copies, mixed into each sub-block and back out."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dsv4.checkpoint.config import ModelConfig
from tools.train.parameters import Weights


class Mixing(NamedTuple):
    """Coefficients of one sub-block: pre [..,M], post [..,M], comb [..,M,M] (source, target)."""

    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


def mixing(c: ModelConfig, w: Weights, site: str, state: torch.Tensor) -> Mixing:
    """The coefficients of the sub-block at `site` ("layers.0.hc_attn").  Shapes: state [..,M,D]."""
    m = c.hc_mult
    logits = _logits(c, w, site, state)
    scale, base = w[f"{site}_scale"], w[f"{site}_base"]
    pre = torch.sigmoid(logits[..., :m] * scale[0] + base[:m]) + c.hc_eps
    post = 2.0 * torch.sigmoid(logits[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = logits[..., 2 * m :] * scale[2] + base[2 * m :]
    return Mixing(pre, post, sinkhorn(comb, m, c.hc_sinkhorn_iters, c.hc_eps))


def sinkhorn(logits: torch.Tensor, m: int, iterations: int, eps: float) -> torch.Tensor:
    """Matrices made nearly doubly stochastic: a row softmax, then columns, rows, columns ...

    Shapes: [..,M*M] -> [..,M,M].  Sums run over leading axes, so that memory is read in order.
    """
    shape = logits.shape[:-1]
    c = logits.reshape(-1, m * m).mT.reshape(m, m, -1).contiguous()
    c = torch.softmax(c, dim=1) + eps
    c = c / (c.sum(0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(1, keepdim=True) + eps)
        c = c / (c.sum(0, keepdim=True) + eps)
    return c.reshape(m * m, -1).mT.reshape(*shape, m, m)


def collapse(state: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Copies summed under their weights.  Shapes: [..,M,D], [..,M] -> [..,D]."""
    return (weights[..., None, :] @ state).squeeze(-2)


def expand(y: torch.Tensor, state: torch.Tensor, by: Mixing) -> torch.Tensor:
    """The next state: copy k gets post_k y plus sum_j comb[j,k] of the copies that entered."""
    return by.post[..., None] * y[..., None, :] + by.comb.mT @ state


def collapse_exit(c: ModelConfig, w: Weights, at: str, state: torch.Tensor) -> torch.Tensor:
    """The copies as one vector before an output head; `at` is "" or "mtp.2."."""
    logits = _logits(c, w, f"{at}hc_head", state)
    gates = torch.sigmoid(logits * w[f"{at}hc_head_scale"][0] + w[f"{at}hc_head_base"])
    return collapse(state, gates + c.hc_eps)


def _logits(c: ModelConfig, w: Weights, site: str, state: torch.Tensor) -> torch.Tensor:
    lanes = state.flatten(-2)
    scale = torch.rsqrt(lanes.square().mean(-1, keepdim=True) + c.norm_eps)
    return (lanes @ w[f"{site}_fn"].mT) * scale
