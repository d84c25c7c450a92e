"""Tensors that are made when they are asked for: a checkpoint without files, all in bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.checkpoint.mint import key_of
from dsv4.checkpoint.reader import Checkpoint
from dsv4.checkpoint.recipes import NORMAL_DEVIATION
from dsv4.checkpoint.rules import refuse
from dsv4.kernels.mint import mint_bf16
from dsv4.runtime.device import Device
from dsv4.spec import BF16


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor to be: nearly normal numbers of this mean and deviation."""

    shape: tuple[int, ...]
    mean: float = 0.0
    deviation: float = 0.0
    dtype: str = "BF16"


@dataclass(frozen=True, slots=True)
class MadeTensors:
    """A configuration and its tensors by name, made on a device from (seed, name, index).

    changes: gives the bits of a tensor that is not random, from those that it would have had.
    """

    title: str
    content: Mapping[str, Any]
    entries: Mapping[str, MadeTensor]
    device: Device
    seed: int = 0
    changes: Mapping[str, Callable[[MadeTensors, np.ndarray], np.ndarray]] = field(
        default_factory=dict
    )

    def __iter__(self) -> Iterator[str]:
        """Tensor names."""
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return name in self.entries

    @property
    def parameters(self) -> int:
        """How many numbers all tensors hold."""
        return sum(int(np.prod(t.shape)) for t in self.entries.values())

    def config(self) -> tuple[Mapping[str, Any], str]:
        """The configuration, and where it comes from."""
        return self.content, self.title

    def entry(self, name: str) -> MadeTensor:
        """What a tensor will be. Errors: Refusal when there is none of that name."""
        if name not in self.entries:
            found = f"no {name!r} among {len(self.entries)} tensors"
            raise refuse("unknown-tensor", found, self.title, "ask for one of them")
        return self.entries[name]

    def tensor(self, name: str) -> np.ndarray:
        """The bits of a tensor, bf16 in uint16, on the host."""
        made = self.random(name)
        return self.changes[name](self, made) if name in self.changes else made

    def random(self, name: str) -> np.ndarray:
        """The bits that a tensor has before it is changed."""
        entry, device = self.entry(name), self.device
        out = device.empty((1, int(np.prod(entry.shape))), BF16)
        keys = device.to_device(np.array([key_of(self.seed, name)], np.int64))
        scale = entry.deviation / NORMAL_DEVIATION
        mint_bf16(keys, out=out, device=device, start=0, mean=entry.mean, scale=scale)
        return device.to_numpy(out).reshape(entry.shape)

    def __enter__(self) -> MadeTensors:
        """These tensors."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""


def opened(
    where: Path | MadeTensors, rename: Callable[[str], str] | None = None
) -> Checkpoint | MadeTensors:
    """The tensors of a folder, or those that are made. Errors: as `Checkpoint.open`."""
    return where if isinstance(where, MadeTensors) else Checkpoint.open(where, rename=rename)
