"""What held-out text says of a model: while it learns, at its end, and of stored checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dsv4.checkpoint.config import ModelConfig
from tools.train.batches import windows
from tools.train.corpus import SourceFile
from tools.train.draft_run import drafter_loss, gathered, rows_of
from tools.train.drafter import draft
from tools.train.evaluation import bits_per_byte
from tools.train.laws import Law, engine, smooth
from tools.train.operators import rope_tables
from tools.train.parameters import Weights, is_trunk
from tools.train.stored import read_weights
from tools.train.trunk import Model, forward
from tools.train.trunk_run import Tables, bits, frozen

_SAMPLE = 8  # windows of a look while training
_ANCHORS = 64  # drafts of a window


def trunk_numbers(
    config: ModelConfig,
    weights: Weights,
    law: Law,
    tables: Tables,
    files: Sequence[SourceFile],
    length: int,
) -> dict[str, float]:
    """Bits per byte of a few windows; nothing where no file fills one."""
    read, said = _sample(config, files, length, weights["embed"].device)
    if not len(read):
        return {}
    trunk = frozen(config, {n: w for n, w in weights.items() if is_trunk(n)}, law, tables)
    with torch.no_grad():
        logits = forward(trunk, read).logits.flatten(0, -2)
    return {"held_out_bits": bits(float(cross_entropy(logits.float(), said.flatten())))}


def drafter_numbers(
    config: ModelConfig,
    weights: Weights,
    law: Law,
    tables: Tables,
    files: Sequence[SourceFile],
    length: int,
) -> dict[str, list[float]]:
    """The share of drafts that are right up to each place, where the text goes the trunk's way."""
    read, said = _sample(config, files, length, weights["embed"].device)
    if not len(read):
        return {}
    model = frozen(config, weights, law, tables)
    last = read.shape[1] - config.dspark_block_size
    anchors = torch.arange(min(7, last - 1), last, max(1, last // _ANCHORS), device=read.device)
    anchors = anchors.expand(len(read), -1)
    rows = rows_of(config, anchors)
    with torch.no_grad():
        seen = forward(model, read)
        made = draft(model, seen.taps, anchors, gathered(read, rows))
        _, numbers = drafter_loss(made, gathered(seen.logits, rows), gathered(said, rows))
    return {"held_out_accepted": numbers["accepted"].tolist()}


def held_out_bits(model: Model, files: Sequence[SourceFile], most: int | None) -> float:
    """Bits per byte with all positions that the model was made for, half of them apart."""
    context = model.config.usable_positions
    return bits_per_byte(model, files, context=context, stride=context // 2, batch=8, most=most)


def scored(folder: Path, files: Sequence[Path], device: str) -> dict[str, float]:
    """Bits per byte of files under both laws in float32, by a checkpoint's stored weights.

    Beside them the bytes of the files, by which the card knows what to hold against it.
    """
    config, stored = read_weights(folder)
    kept = {n: w.float() if w.is_floating_point() else w for n, w in stored.items()}
    weights = {n: w.to(device) for n, w in kept.items()}
    tables = rope_tables(config, smooth(torch.float32), weights["embed"].device)
    texts = [SourceFile(file.as_posix(), file.read_bytes()) for file in files]
    bits = {
        law.name: held_out_bits(frozen(config, weights, law, tables), texts, None)
        for law in (engine(torch.float32), smooth(torch.float32))
    }
    return {**bits, "size_bytes": sum(len(t.content) for t in texts)}


def _sample(
    config: ModelConfig, files: Sequence[SourceFile], length: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what is read, what should be said) of a few full windows spread over all files."""
    context = min(length, config.usable_positions)
    full = [w for w in windows(files, context, context) if len(w.read) == context]
    picked = full[:: max(1, len(full) // _SAMPLE)][:_SAMPLE]
    parts = [[w.read for w in picked], [w.said for w in picked]]
    shape = (len(picked), context)
    read, said = (torch.from_numpy(np.array(p, np.int64).reshape(shape)).to(device) for p in parts)
    return read, said
