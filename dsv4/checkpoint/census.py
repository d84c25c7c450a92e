"""Compares the headers of a checkpoint with what its configuration expects, and counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4.checkpoint.config import ModelConfig, read_config
from dsv4.checkpoint.expected import COMPONENTS, Entry, Layout, expected_tensors
from dsv4.checkpoint.formats import block_of, is_redundant_copy, normalise
from dsv4.checkpoint.headers import StoredTensor
from dsv4.checkpoint.reader import Checkpoint
from dsv4.checkpoint.rules import refuse


@dataclass(frozen=True, slots=True)
class Census:
    """The tensors of a valid checkpoint; ignored are copies of embedding and head beside them."""

    config: ModelConfig
    layout: Layout
    entries: Mapping[str, Entry]
    ignored: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors of the model."""
        return sum(e.size_bytes for e in self.entries.values())

    def by_component(self, *, tail: bool) -> dict[str, tuple[int, int]]:
        """Count and bytes of each component, of the stages after the trunk or of all the rest."""
        chosen = [e for n, e in self.entries.items() if n.startswith("mtp.") == tail]
        return _totals(chosen, COMPONENTS, lambda e: e.component)

    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Count and bytes of each stored type."""
        dtypes = sorted({e.dtype for e in self.entries.values()})
        return _totals(list(self.entries.values()), dtypes, lambda e: e.dtype)

    def by_block(self) -> dict[str, int]:
        """Bytes of each block, "" being embedding, head and the trunk's exit."""
        sizes = dict.fromkeys(("", *self.config.blocks), 0)
        for name, entry in self.entries.items():
            sizes[block_of(name)] += entry.size_bytes
        return sizes


@dataclass(frozen=True, slots=True)
class Artifact:
    """A checkpoint whose headers passed the census: its tensors and what they are."""

    tensors: Checkpoint
    census: Census

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.census.config


def open_artifact(path: Path, *, headers_only: bool = False) -> Artifact:
    """The checkpoint in a folder (or a file of headers), validated without reading weights.

    Errors: Refusal naming the broken rule, OSError when a file cannot be read.
    """
    tensors = Checkpoint.open(path, rename=normalise, headers_only=headers_only)
    content, where = tensors.config()
    return Artifact(tensors, take_census(read_config(content, where), tensors.entries, path))


def take_census(
    config: ModelConfig, stored: Mapping[str, StoredTensor], where: object = "the headers"
) -> Census:
    """The census of stored tensors, once they are exactly the expected ones.

    Errors: Refusal naming the rule and the first tensor that breaks it.
    """
    layout = layout_of(config, stored, where)
    expected = expected_tensors(config, layout)
    if problems := compare(expected, stored):
        rule, found = problems[0]
        same = sum(1 for other, _ in problems if other == rule)
        others = sorted({other for other, _ in problems} - {rule})
        raise refuse(
            rule,
            found + (f" ({same} such)" if same > 1 else ""),
            where,
            "fetch the files again, with the config.json of the same revision"
            + (f"; also broken: {', '.join(others)}" if others else ""),
        )
    ignored = tuple(name for name in stored if name not in expected)
    return Census(config, layout, expected, ignored)


def compare(
    expected: Mapping[str, Entry], stored: Mapping[str, StoredTensor]
) -> list[tuple[str, str]]:
    """Every difference as (rule, what was found), the gravest kind first."""
    missing, extra, dtypes, shapes = [], [], [], []
    for name, entry in expected.items():
        found = stored.get(name)
        if found is None:
            missing.append(f"no {name}, expected {entry.dtype} {list(entry.shape)}")
        elif found.dtype != entry.dtype:
            dtypes.append(f"{name} is {found.dtype}, expected {entry.dtype}")
        elif found.shape != entry.shape:
            shapes.append(f"{name} is {list(found.shape)}, expected {list(entry.shape)}")
    for name, found in stored.items():
        if name not in expected and not is_redundant_copy(name):
            extra.append(f"{found.name}, {found.dtype} {list(found.shape)}")
    kinds = {
        "wrong-dtype": dtypes,
        "wrong-shape": shapes,
        "missing-tensor": missing,
        "extra-tensor": extra,
    }
    return [(rule, found) for rule, all_found in kinds.items() for found in all_found]


def layout_of(config: ModelConfig, names: Collection[str], where: object) -> Layout:
    """The layout that stored names show.

    Errors: Refusal when both tails are stored, or other stages than the configuration has.
    """
    nextn, dspark = "mtp.0.e_proj.weight" in names, "mtp.0.main_proj.weight" in names
    stages = {name.split(".")[1] for name in names if name.startswith("mtp.")}
    lineage = "nextn" if nextn else "dspark" if dspark else "none"
    advice = "fetch weights and config.json of one revision"
    if nextn and dspark:
        raise refuse("lineage", "e_proj and main_proj in mtp.0", where, advice)
    if stages and lineage == "none":
        found = "stages mtp.* with neither mtp.0.e_proj.weight nor mtp.0.main_proj.weight"
        raise refuse("lineage", found, where, advice)
    if stages != {str(k) for k in range(config.stages)}:
        names_found = ", ".join(f"mtp.{k}" for k in sorted(stages)) or "no mtp.*"
        found = f"{names_found}, and a configuration of {config.stages} stages"
        raise refuse("stage-count", found, where, advice)
    if (lineage == "dspark") != bool(config.dspark_block_size):
        found = f"a {lineage} tail and dspark_block_size {config.dspark_block_size}"
        raise refuse("lineage", found, where, advice)
    if lineage == "nextn" and config.stages != 1:
        raise refuse("stage-count", f"{config.stages} NextN blocks", where, advice)
    nvfp4 = (b for b in config.blocks if f"{b}ffn.experts.0.w1.weight_scale_2" in names)
    return Layout(lineage, frozenset(nvfp4))


def _totals(
    entries: Iterable[Entry], kinds: Iterable[str], kind_of: Callable[[Entry], str]
) -> dict[str, tuple[int, int]]:
    """Count and bytes of each kind that occurs."""
    totals = {kind: (0, 0) for kind in kinds}
    for entry in entries:
        count, size = totals[kind_of(entry)]
        totals[kind_of(entry)] = (count + 1, size + entry.size_bytes)
    return {kind: total for kind, total in totals.items() if total[0]}
