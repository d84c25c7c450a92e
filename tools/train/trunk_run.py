"""Trains the trunk: next bytes, indexers, and the router's balance."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dsv4.checkpoint.config import ModelConfig
from tools.train.batches import Pieces, read_and_said
from tools.train.laws import Law, engine, smooth
from tools.train.optimiser import Optimiser
from tools.train.parameters import Weights, is_trunk, prepared
from tools.train.settings import Settings
from tools.train.trunk import Model, forward, model_of

Tables = tuple[torch.Tensor, torch.Tensor]
Loads = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class Clock:
    """How far a run is, by steps or by time, whichever is ahead.

    seconds: spent so far, over all starts.
    """

    steps: int
    minutes: float | None
    seconds: float = 0.0

    def share(self, step: int) -> float:
        """The part of the run that lies behind, from 0 to 1."""
        by_time = self.seconds / (60.0 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(step / self.steps, by_time))


def fall(share: float, warm: float, cool: float) -> float:
    """The part of the full rate that is used: it rises, stays, and falls to a hundredth."""
    rising = min(1.0, (share + 1e-3) / warm) if warm else 1.0
    falling = min(1.0, (1.0 - share) / cool) if cool else 1.0
    return max(0.01, min(rising, falling))


def train_trunk(
    config: ModelConfig,
    settings: Settings,
    optimiser: Optimiser,
    pieces: Pieces,
    tables: Tables,
    clock: Clock,
    *,
    compute: torch.dtype,
    report: Callable[[int, float, dict[str, Any]], None],
) -> None:
    """Run the trunk's steps until the clock is through.

    report(step, share, numbers) is called after every step; numbers are tensors and floats.
    """
    weights = optimiser.weights
    device = weights["embed"].device
    torch.manual_seed(settings.seed + optimiser.steps)
    while (share := clock.share(optimiser.steps)) < 1.0:
        begin, step = time.monotonic(), optimiser.steps
        read, said = read_and_said(pieces.batch(step, settings.batch), device)
        law = training_law(settings, share, compute)
        own = {n: w for n, w in weights.items() if is_trunk(n)}
        model = model_of(
            config,
            prepared(own, config, law),
            law,
            tables=tables,
            sparse=share >= settings.sparse_from,
            dropout=settings.dropout,
        )
        output = forward(model, read)
        loss = cross_entropy(output.logits, said)
        index_loss = sum(output.index_losses, torch.zeros_like(loss))
        (loss + settings.index_weight * index_loss).backward()
        torch.nn.utils.clip_grad_norm_([w for w in own.values() if w.requires_grad], 1.0)
        part = fall(share, settings.warm, settings.cool)
        optimiser.step(settings.rate * part, settings.plain_rate * part, settings.decay)
        balance(weights, output.loads, settings.bias_speed * part)
        report(step, share, {"loss": loss.detach(), "index": index_loss.detach(), "rate": part,
                             "coded": law.weights, "sparse": model.sparse,
                             "uneven": unevenness(output.loads)})  # fmt: skip
        clock.seconds += time.monotonic() - begin


def training_law(settings: Settings, share: float, compute: torch.dtype) -> Law:
    """The law of a step: types alone at first, the codes of the export at last."""
    make = engine if share >= settings.coded_from else smooth
    return make(torch.float32, compute)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean surprise of the targets, in nats."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def balance(weights: Weights, loads: Loads, speed: float) -> None:
    """Move the selection bias of every block towards even loads.

    Source: auxiliary-loss-free balancing; the bias selects only, so no gradient reaches it.
    """
    with torch.no_grad():
        for at, load in loads.items():
            if f"{at}ffn.gate.bias" in weights:
                weights[f"{at}ffn.gate.bias"].add_(torch.sign(load.mean() - load), alpha=speed)


def unevenness(loads: Loads) -> torch.Tensor:
    """The busiest expert's load over the mean one, the worst of all blocks."""
    return torch.stack([load.max() / load.mean() for load in loads.values()]).max()


def bits(nats: float) -> float:
    """Nats as bits."""
    return nats / math.log(2.0)


def frozen(config: ModelConfig, weights: Weights, law: Law, tables: Tables) -> Model:
    """The model of weights that do not change any more, without gradients."""
    with torch.no_grad():
        ready = {n: w.detach() for n, w in prepared(weights, config, law).items()}
    return model_of(config, ready, law, tables=tables)
