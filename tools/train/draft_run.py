"""Trains the drafter on a frozen trunk: what it would write next, and how sure that is.

The text is the corpus; the targets are the trunk's own distributions behind it. A row counts in
full while the corpus went on as the trunk would have, because greedy rounds meet no other rows,
and a little otherwise. Confidence learns whether the trunk's best token is the drafter's, which
is what a greedy round accepts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dsv4.checkpoint.config import ModelConfig
from tools.train.batches import Pieces, read_and_said
from tools.train.drafter import Drafts, draft
from tools.train.laws import engine, smooth
from tools.train.optimiser import Optimiser
from tools.train.parameters import is_trunk, prepared
from tools.train.settings import Settings
from tools.train.trunk import Model, forward, model_of
from tools.train.trunk_run import Clock, Tables, balance, fall, unevenness

_OFF_PATH = 0.1
_CODED_FROM = 0.5
_FADE = 0.9


def train_drafter(
    config: ModelConfig,
    settings: Settings,
    trunk: Model,
    optimiser: Optimiser,
    pieces: Pieces,
    tables: Tables,
    clock: Clock,
    *,
    compute: torch.dtype,
    report: Callable[[int, float, dict[str, Any]], None],
) -> None:
    """Run the drafter's steps until the clock is through.  report: as in `train_trunk`."""
    weights, device = optimiser.weights, trunk.weights["embed"].device
    torch.manual_seed(settings.seed + 1 + optimiser.steps)
    while (share := clock.share(optimiser.steps)) < 1.0:
        begin, step = time.monotonic(), optimiser.steps
        tokens, said = read_and_said(pieces.batch(step, settings.draft_batch), device)
        with torch.no_grad():
            seen = forward(trunk, tokens)
        anchors = some_anchors(config, settings, step, tokens.shape).to(device)
        law = (engine if share >= _CODED_FROM else smooth)(torch.float32, compute)
        own = prepared({n: w for n, w in weights.items() if not is_trunk(n)}, config, law)
        shared = {n: trunk.weights[n] for n in ("embed", "head")}
        model = model_of(config, own | shared, law, tables=tables)
        rows = rows_of(config, anchors)
        drafts = draft(model, seen.taps, anchors, gathered(tokens, rows))
        loss, numbers = drafter_loss(drafts, gathered(seen.logits, rows), gathered(said, rows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_([w for w in weights.values() if w.requires_grad], 1.0)
        part = fall(share, settings.warm, settings.cool)
        optimiser.step(settings.rate * part, settings.plain_rate * part, settings.decay)
        balance(weights, drafts.loads, settings.bias_speed * part)
        report(step, share, numbers | {"rate": part, "coded": law.weights,
                                       "uneven": unevenness(drafts.loads)})  # fmt: skip
        clock.seconds += time.monotonic() - begin


def some_anchors(
    config: ModelConfig, settings: Settings, step: int, shape: torch.Size
) -> torch.Tensor:
    """Distinct newest positions of every sequence, those of a step being a function of the seed.

    Shapes: -> [S,A].  A block's rows lie within the sequence.
    """
    rng = np.random.default_rng((settings.seed, step))
    last = shape[1] - config.dspark_block_size
    count = min(settings.anchors, last)
    return torch.from_numpy(np.stack([rng.permutation(last)[:count] for _ in range(shape[0])]))


def rows_of(config: ModelConfig, anchors: torch.Tensor) -> torch.Tensor:
    """The positions anchor + 1 + i of every block.  Shapes: [S,A] -> [S,A,B]."""
    return anchors[..., None] + 1 + torch.arange(config.dspark_block_size, device=anchors.device)


def gathered(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Each sequence's values at its rows.  Shapes: [S,T,...], [S,A,B] -> [S,A,B,...]."""
    sequence = torch.arange(len(values), device=values.device)[:, None, None]
    return values[sequence, rows]


def drafter_loss(
    drafts: Drafts, trunk_logits: torch.Tensor, following: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """(the loss, numbers to log).

    Shapes: drafts of [S,A,B] rows at positions q, trunk_logits [S,A,B,V] and the corpus's tokens
    after them, following [S,A,B].
    """
    best = trunk_logits.argmax(-1)
    on_path = path(best, following)
    fading = _FADE ** torch.arange(best.shape[-1], device=best.device)
    weight = torch.where(on_path, 1.0, _OFF_PATH) * fading
    weight = weight / weight.sum()
    logs = torch.log_softmax(drafts.logits.float(), -1)
    target = torch.softmax(trunk_logits.float(), -1)
    surprise = -(target * logs).sum(-1) - 1.0 * logs.gather(-1, best[..., None])[..., 0]
    right = (drafts.logits.argmax(-1) == best).float()
    doubt = torch.nn.functional.binary_cross_entropy_with_logits(
        drafts.confidence.float(), right, reduction="none"
    )
    loss = (weight * (surprise + 0.2 * doubt)).sum()
    there = on_path.float()
    accepted = (right.cumprod(-1) * there).sum((0, 1)) / there.sum((0, 1)).clamp_min(1.0)
    return loss, {
        "loss": loss.detach(),
        "doubt": (weight * doubt).sum().detach(),
        "accepted": accepted.detach(),
    }


def path(best: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Which rows a greedy round could meet: before them the corpus took the trunk's best tokens.

    Shapes: [S,A,B] both -> [S,A,B]; a block's first row always is one.
    """
    followed = (best == following).cumprod(-1).bool()
    return torch.nn.functional.pad(followed[..., :-1], (1, 0), value=True)
