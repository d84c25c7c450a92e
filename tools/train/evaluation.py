"""Bits per byte of held-out files, and what general compressors make of them."""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Sequence

import numpy as np
import torch

from tools.train.batches import windows
from tools.train.corpus import SourceFile
from tools.train.settings import PAD
from tools.train.trunk import Model, forward


def bits_per_byte(
    model: Model,
    files: Sequence[SourceFile],
    *,
    context: int,
    stride: int,
    batch: int,
    most: int | None = None,
) -> float:
    """The mean of -log2 of what the model gives each byte, over all bytes of all files.

    most: look at so many windows only, spread over all of them.
    """
    device, total, count = model.weights["embed"].device, 0.0, 0
    found = list(windows(files, context, stride))
    if most is not None:
        found = found[:: -(-len(found) // most)]
    for start in range(0, len(found), batch):
        group = found[start : start + batch]
        longest = max(len(window.read) for window in group)
        read, said = (np.full((len(group), longest), PAD, np.int64) for _ in range(2))
        counts = np.zeros((len(group), longest), bool)
        for row, window in enumerate(group):
            size = len(window.read)
            read[row, :size], said[row, :size] = window.read, window.said
            counts[row, window.fresh : size] = True
        with torch.no_grad():
            logits = forward(model, torch.from_numpy(read).to(device)).logits
        logs = torch.log_softmax(logits.float(), -1)
        own = logs.gather(-1, torch.from_numpy(said).to(device)[..., None])[..., 0]
        total -= float(own[torch.from_numpy(counts).to(device)].double().sum())
        count += int(counts.sum())
    return total / math.log(2.0) / max(count, 1)


def compressed_bits_per_byte(files: Sequence[SourceFile]) -> dict[str, float]:
    """Bits per byte of `gzip -9` and `xz -9`, of all files as one and of each on its own."""
    contents = [f.content for f in files]
    whole, size = b"".join(contents), sum(map(len, contents))

    def xz(data: bytes) -> int:
        return len(lzma.compress(data, preset=9))

    def gz(data: bytes) -> int:
        return len(gzip.compress(data, 9))

    return {
        "gzip": 8 * gz(whole) / size,
        "xz": 8 * xz(whole) / size,
        "gzip_each": 8 * sum(map(gz, contents)) / size,
        "xz_each": 8 * sum(map(xz, contents)) / size,
    }
