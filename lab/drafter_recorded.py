"""Recorded folders of the drafter family: targets, drafters, and end-to-end runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.errors import Refusal
from lab.stored import RECORDED, Checkpoint
from oracle.formats import decode

KINDS = ("target", "drafter", "end-to-end")
UNWINDOWED = "golden_unwindowed.safetensors"
_FLOATS = {"F32": "f32", "F64": "f64", "F16": "f16", "BF16": "bf16"}
_BORROWED = "target_embed_head.safetensors"

Stored = Mapping[str, tuple[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Part:
    """One checkpoint: its configuration and its stored tensors (safetensors dtype, bits)."""

    folder: Path
    content: Mapping[str, Any]
    tensors: Stored


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """What such a folder holds.

    kind: one of KINDS. target, drafter: the checkpoints there are. borrowed: the target's embedding
    and head for a drafter without its own. arrays: outputs by full name, numbers as float64.
    """

    folder: Path
    kind: str
    metadata: Mapping[str, str]
    target: Part | None
    drafter: Part | None
    borrowed: Stored
    arrays: Mapping[str, np.ndarray]

    @property
    def f32_distance(self) -> float:
        """How far the recorded float32 run is from the float64 run, at most anywhere."""
        found = [float(v) for k, v in self.metadata.items() if k.startswith("max_abs_f32_minus")]
        return max(found, default=0.0)


def kind_of(folder: Path) -> str | None:
    """Which of KINDS a folder records, or None when it is no folder of this group."""
    file = folder / RECORDED
    if not file.is_file():
        return None
    kind = Checkpoint(file).metadata.get("kind")
    return kind if kind in KINDS else None


def read_drafter_record(folder: Path, outputs: str = RECORDED) -> DrafterRecord:
    """The content of a folder; `outputs` names another file of outputs over the same inputs.

    Errors: Refusal when the folder is of another kind, or a file is missing or damaged.
    """
    kind = kind_of(folder)
    if kind is None:
        raise Refusal(
            f"{folder} was asked for recorded outputs of a target, a drafter or a run of both\n"
            f"  its {RECORDED} is missing or of another kind\n"
            "  give a folder whose golden.safetensors says kind target, drafter or end-to-end"
        )
    recorded = Checkpoint(folder / RECORDED)
    arrays = {name: values(recorded, name) for name in recorded}
    if outputs != RECORDED:
        other = Checkpoint(folder / outputs)
        inputs = {n: a for n, a in arrays.items() if n.startswith("input.") or "block_ids" in n}
        arrays = {**inputs, **{name: values(other, name) for name in other}}
    borrowed = folder / _BORROWED
    return DrafterRecord(
        folder,
        kind,
        recorded.metadata,
        _part(folder if kind == "target" else folder / "target") if kind != "drafter" else None,
        _part(folder if kind == "drafter" else folder / "draft") if kind != "target" else None,
        _stored(borrowed) if borrowed.is_file() else {},
        arrays,
    )


def values(outputs: Checkpoint, name: str) -> np.ndarray:
    """A stored array: floats as float64, integers as they are."""
    tensor = outputs.tensor(name)
    return decode(tensor.bits, _FLOATS[tensor.dtype]) if tensor.dtype in _FLOATS else tensor.bits


def _part(folder: Path) -> Part:
    config = folder / "config.json"
    if not config.is_file():
        raise Refusal(
            f"{folder} was asked for a checkpoint\n  config.json is not there\n"
            "  give a folder with config.json and model.safetensors"
        )
    content = json.loads(config.read_text(encoding="utf-8"))
    return Part(folder, content, _stored(folder / "model.safetensors"))


def _stored(file: Path) -> Stored:
    weights = Checkpoint(file)
    return {name: (weights.dtype(name), weights.tensor(name).bits) for name in weights}
