"""Routed and shared experts, all of them computed for every row and weighed by the router.

With eight experts of which three are taken, masked products over all of them cost less than
sorting rows would, need no host and have no row order. A weight of zero makes a row of zeros
before the second product, which its quantiser leaves as zeros.
"""

from __future__ import annotations

import torch

from dsv4.checkpoint.config import ModelConfig
from tools.train.laws import Law
from tools.train.operators import island, product
from tools.train.parameters import Weights


def moe(
    c: ModelConfig, w: Weights, law: Law, at: str, x: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the experts' sum, how many rows took each expert).

    Shapes: x [N,D], tokens [N] -> [N,D], [E].
    """
    weights, chosen = route(c, w, at, x, tokens)
    routed = law.expert_input(x).to(law.compute)
    gate = (routed @ w[f"{at}experts.w1"].mT).to(law.real)
    up = (routed @ w[f"{at}experts.w3"].mT).to(law.real)
    hidden = swiglu(gate, up, c.swiglu_limit) * weights.mT[..., None]
    hidden = law.expert_input(hidden).to(law.compute)
    y = (hidden @ w[f"{at}experts.w2"].mT).to(law.real).sum(0)
    shared = swiglu(
        product(x, w[f"{at}shared_experts.w1"], law),
        product(x, w[f"{at}shared_experts.w3"], law),
        c.swiglu_limit,
    )
    return y + product(shared, w[f"{at}shared_experts.w2"], law), chosen.sum(0)


def route(
    c: ModelConfig, w: Weights, at: str, x: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(each expert's weight, 0 where it is not chosen; which are chosen).  Shapes: [N,E] both."""
    scores = torch.sqrt(torch.nn.functional.softplus(island(x, w[f"{at}gate"])))
    if f"{at}gate.tid2eid" in w:
        ids = w[f"{at}gate.tid2eid"][tokens]
    else:
        keys = scores.detach() + w[f"{at}gate.bias"].detach()
        # Stable, so that of equal keys the lowest id wins.
        ids = torch.sort(keys, dim=-1, descending=True, stable=True)[1]
        ids = ids[..., : c.n_activated_experts]
    chosen = torch.zeros_like(scores).scatter(-1, ids, 1.0)
    own = scores * chosen
    return own / own.sum(-1, keepdim=True) * c.route_scale, chosen


def swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """silu(gate) * up; with a limit, up is clamped on both sides and gate from above."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up
