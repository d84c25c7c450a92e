"""Where weights come from: files that are checked while they are read, or a mint on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dsv4.checkpoint.census import Artifact, Census, open_artifact
from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.formats import format_of
from dsv4.checkpoint.mint import MintPlan
from dsv4.checkpoint.values import check_values
from dsv4.runtime.device import Device


class WeightSource(Protocol):
    """Tensors by published name, brought to a device on demand."""

    @property
    def census(self) -> Census:
        """What is there."""

    @property
    def where(self) -> str:
        """Where it comes from, for messages."""

    def tensor(self, device: Device, name: str) -> Any:
        """One tensor as stored, on the device. Errors: Refusal for values that cannot be."""

    def bank(self, device: Device, names: Sequence[str]) -> Any:
        """Tensors of one type and shape, one after the other: [E, *shape]."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """The tensors of a checkpoint folder. exact: second scales must be powers of two."""

    artifact: Artifact
    exact: bool = True

    @property
    def census(self) -> Census:
        """The census of the headers."""
        return self.artifact.census

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.artifact.tensors.path)

    def tensor(self, device: Device, name: str) -> Any:
        """One tensor as stored, on the device, once its values are checked."""
        array = device.to_device(self._checked(name))
        self.artifact.tensors.release(name)
        return array

    def bank(self, device: Device, names: Sequence[str]) -> Any:
        """Tensors of one type and shape, one after the other."""
        entry = self.census.entries[names[0]]
        bank = device.empty((len(names), *entry.shape), format_of(entry.dtype))
        for place, name in enumerate(names):
            device.write(bank[place : place + 1], self._checked(name))
            self.artifact.tensors.release(name)
        return bank

    def _checked(self, name: str) -> np.ndarray:
        bits = self.artifact.tensors.tensor(name)
        check_values(
            name,
            self.census.entries[name],
            bits,
            n_experts=self.artifact.config.n_routed_experts,
            where=self.artifact.tensors.entry(name).file,
            exact=self.exact,
        )
        return bits


@dataclass(frozen=True, slots=True)
class MintSource:
    """The tensors of a checkpoint that is only planned, made on the device itself."""

    plan: MintPlan

    @property
    def census(self) -> Census:
        """What the plan holds."""
        return Census(self.plan.config, self.plan.layout, self.plan.entries)

    @property
    def where(self) -> str:
        """The plan in words."""
        return f"minted {self.plan.size} {self.plan.layout_name}, seed {self.plan.seed}"

    def tensor(self, device: Device, name: str) -> Any:
        """One tensor, made on the device."""
        return self.plan.tensor(device, name)

    def bank(self, device: Device, names: Sequence[str]) -> Any:
        """Tensors of one type and shape, made in one launch."""
        return self.plan.tensors(device, names)


def open_source(model: Path | str | MintPlan | WeightSource) -> WeightSource:
    """The source behind a folder or a plan. Errors: Refusal naming the rule that is broken."""
    if isinstance(model, MintPlan):
        return MintSource(model)
    if isinstance(model, (str, Path)):
        return FileSource(open_artifact(Path(model)))
    return model


def config_of(source: WeightSource) -> ModelConfig:
    """The configuration of a source."""
    return source.census.config
