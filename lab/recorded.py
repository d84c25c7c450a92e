"""A recorded folder: a checkpoint, its configuration, and outputs of another implementation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.errors import Refusal
from lab.stored import RECORDED, Checkpoint
from oracle.config import ModelConfig, read_config
from oracle.formats import decode

_FLOATS = {"F32": "f32", "F64": "f64", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recorded folder holds.

    tensors: stored weights by name, (safetensors dtype, bits). arrays: recorded outputs by their
    full name; numbers as float64, ids as integers. prompt: how many of `ids` were prefilled.
    """

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, tuple[str, np.ndarray]]
    arrays: Mapping[str, np.ndarray]
    prompt: int

    @property
    def ids(self) -> np.ndarray:
        """The prompt, then the ids fed to the decode steps."""
        return self.arrays["ids"]


def read_recorded(folder: Path) -> Recorded:
    """The content of a recorded folder.

    Errors: Refusal when a file is missing, damaged or breaks a rule of the configuration.
    """
    config_file = folder / "config.json"
    if not config_file.is_file() or not (folder / RECORDED).is_file():
        missing = RECORDED if config_file.is_file() else "config.json"
        raise Refusal(
            f"{folder} holds no recorded outputs: {missing} is not there\n"
            f"  give a folder with config.json, weights and {RECORDED}"
        )
    outputs = Checkpoint(folder / RECORDED)
    arrays = {name: _values(outputs, name) for name in outputs}
    with refusing(folder):
        config = read_config(json.loads(config_file.read_text(encoding="utf-8")))
        ids = arrays.get("ids")
        if ids is None or ids.ndim != 1 or ids.dtype.kind != "i":
            raise ValueError(f"{RECORDED} has no list of ids")
        prompt = int(outputs.metadata.get("n_prefill", "0"))
        if not 1 <= prompt <= len(ids):
            raise ValueError(f"{RECORDED} says {prompt} of {len(ids)} ids are the prompt")
    weights = Checkpoint(folder)
    tensors = {name: (weights.dtype(name), weights.tensor(name).bits) for name in weights}
    return Recorded(folder, config, tensors, arrays, prompt)


@contextlib.contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """A `with` in which what the model refuses (a ValueError) becomes a Refusal of the folder."""
    try:
        yield
    except ValueError as error:
        raise Refusal(f"{folder} cannot be used: {error}") from error


def _values(outputs: Checkpoint, name: str) -> np.ndarray:
    tensor = outputs.tensor(name)
    if tensor.dtype in _FLOATS:
        return decode(tensor.bits, _FLOATS[tensor.dtype])
    return tensor.bits
