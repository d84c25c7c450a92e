"""What a rank of a tensor-parallel model holds: a share of the wide matrices, and all of the rest.

Heads with their groups, the inside of every expert and the vocabulary are cut into as many parts as
there are ranks. A part is made of whole heads, groups, quantiser groups and blocks of scales, so
every number that a rank makes before a sum is one that a single card makes too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dsv4.checkpoint.census import Census
from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.config_rules import WEIGHT_BLOCK
from dsv4.checkpoint.expected import Entry
from dsv4.checkpoint.formats import format_of
from dsv4.engine.source import WeightSource
from dsv4.errors import Refusal
from dsv4.runtime.device import Device

# Rows of these are cut, and columns of those: names behind a block's prefix, without their last
# part. An indexer has a wq_b of its own, which every rank holds whole.
_ROWS: Final = re.compile(
    r"^head$|^(?:layers|mtp)\.\d+\."
    r"(?:attn\.(?:wq_b|wo_a|attn_sink)|ffn\.(?:shared_experts|experts\.\d+)\.w[13])$"
)
_COLUMNS: Final = re.compile(
    r"^(?:layers|mtp)\.\d+\.(?:attn\.wo_b|ffn\.(?:shared_experts|experts\.\d+)\.w2)$"
)
_ENDS: Final = (".weight", ".scale", ".weight_scale")
# Experts of a bank that lie on the device whole while their parts are taken.
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Share:
    """Part `rank` of `world` equal ones."""

    rank: int
    world: int

    @property
    def speaks(self) -> bool:
        """Whether what all ranks hold alike is handed out by this one: the last."""
        return self.rank == self.world - 1

    def config(self, config: ModelConfig) -> ModelConfig:
        """The sizes of the part, as the layers compute with them."""
        if self.world == 1:
            return config
        return replace(
            config,
            n_heads=config.n_heads // self.world,
            o_groups=config.o_groups // self.world,
            moe_inter_dim=config.moe_inter_dim // self.world,
            vocab_size=config.vocab_size // self.world,
        )

    def entry(self, name: str, entry: Entry) -> Entry:
        """What of a tensor is held. Errors: Refusal when it cannot be cut so."""
        axis = cut_axis(name)
        if axis is None:
            return entry
        shape = list(entry.shape)
        if shape[axis] % self.world:
            raise Refusal(
                f"{name} was to be cut into {self.world} parts\n"
                f"  it has {shape[axis]} along axis {axis}\n  in its header\n"
                "  use as many devices as divide it, or DSV4_PARALLEL=layers"
            )
        shape[axis] //= self.world
        return replace(entry, shape=tuple(shape))


def cut_axis(name: str) -> int | None:
    """The axis along which ranks share a tensor; None for what each holds whole."""
    stem = next((name.removesuffix(e) for e in _ENDS if name.endswith(e)), name)
    if _ROWS.match(stem):
        return 0
    return 1 if _COLUMNS.match(stem) else None


def demand_divisible(config: ModelConfig, world: int, where: str) -> None:
    """Nothing, if the model can be cut into that many parts. Errors: Refusal naming what cannot."""
    if world == 1:
        return
    c = config
    rules = (
        ("attention heads", c.n_heads, c.head_dim, WEIGHT_BLOCK),
        ("output groups", c.o_groups, c.o_lora_rank, WEIGHT_BLOCK),
        # Two codes are a byte and 32 share a scale; the groups of the quantiser are wider.
        ("columns inside an expert", c.moe_inter_dim, 1, WEIGHT_BLOCK),
        ("tokens of the vocabulary", c.vocab_size, 1, 1),
    )
    for what, count, width, block in rules:
        part = count // world
        if count % world or part * width % block:
            unit = "" if width == 1 else f" of {width} columns"
            unit += "" if block == 1 else f" in whole blocks of {block}"
            raise Refusal(
                f"DSV4_PARALLEL=tensor was asked for on {world} devices\n"
                f"  {count} {what}{unit} are not {world} equal parts\n  in {where}\n"
                "  use as many devices as divide them, or DSV4_PARALLEL=layers"
            )


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source of which a rank takes its parts; the census is that of the whole."""

    whole: WeightSource
    share: Share

    @property
    def census(self) -> Census:
        """What is there, uncut."""
        return self.whole.census

    @property
    def where(self) -> str:
        """Where it comes from, for messages."""
        return self.whole.where

    def tensor(self, device: Device, name: str) -> Any:
        """The rank's part of one tensor. Errors: as the source's, and Refusal for a bad cut."""
        return self._part(device, name, self.whole.tensor(device, name), 0)

    def bank(self, device: Device, names: Sequence[str]) -> Any:
        """The parts of tensors of one type and shape, one after the other: [E, *shape]."""
        if cut_axis(names[0]) is None:
            return self.whole.bank(device, names)
        entry = self.share.entry(names[0], self.census.entries[names[0]])
        made = device.empty((len(names), *entry.shape), format_of(entry.dtype))
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            part = self._part(device, some[0], self.whole.bank(device, some), 1)
            device.receive(made[first : first + len(some)], part, device)
        return made

    def _part(self, device: Device, name: str, array: Any, before: int) -> Any:
        """before: axes in front of the tensor's own."""
        axis = cut_axis(name)
        if axis is None:
            return array
        count = self.share.entry(name, self.census.entries[name]).shape[axis]
        first = self.share.rank * count
        window = (slice(None),) * (before + axis) + (slice(first, first + count),)
        return device.contiguous(array[window])
