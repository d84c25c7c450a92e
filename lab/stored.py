"""Tensors of safetensors files by their stored names, memory-mapped, bits untouched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.checkpoint import reader

RECORDED = "golden.safetensors"
"""Recorded outputs lie beside the weights of some checkpoints, and are none."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor: its name, its safetensors dtype, and its bits."""

    name: str
    dtype: str
    bits: np.ndarray


class Checkpoint:
    """The tensors of a checkpoint folder or of one safetensors file, read as stored."""

    def __init__(self, folder: Path) -> None:
        """Read every header. Errors: Refusal naming the file and what is wrong with it."""
        self.folder = folder
        self._reader = reader.Checkpoint.open(folder)
        self.metadata = self._reader.metadata

    def __iter__(self) -> Iterator[str]:
        """Tensor names in stored order."""
        return iter(self._reader)

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of that name is stored."""
        return name in self._reader

    def dtype(self, name: str) -> str:
        """The safetensors dtype of a tensor."""
        return self._reader.entry(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._reader.entry(name).shape

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name, a view of the file. Errors: Refusal when it is not stored."""
        return Tensor(name, self.dtype(name), self._reader.tensor(name))
