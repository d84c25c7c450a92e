"""Stored tensors as the dictionary of weights, decoded exactly by the oracle's decoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dsv4.checkpoint.config import ModelConfig, read_config
from dsv4.checkpoint.formats import WEIGHTS
from dsv4.checkpoint.reader import Checkpoint
from oracle.blocks import decode_fp8_block, decode_mxfp4, decode_nvfp4
from oracle.formats import decode
from tools.train.parameters import parameters

Read = Callable[[str], tuple[str, np.ndarray]]


def read_weights(folder: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """(configuration, float64 weights) of a checkpoint folder with a DSpark drafter or none.

    Errors: Refusal for a folder that is no checkpoint; KeyError for a tensor that is missing.
    """
    with Checkpoint.open(folder) as checkpoint:
        content, where = checkpoint.config()
        config = read_config(content, where)

        def read(name: str) -> tuple[str, np.ndarray]:
            return checkpoint.entry(name).dtype, checkpoint.tensor(name)

        return config, decoded(config, read)


def decoded(config: ModelConfig, read: Read) -> dict[str, torch.Tensor]:
    """The float64 weights of stored tensors; `read` gives a name's stored type and bits."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in parameters(config).items():
        if ".experts." in name:
            block, _, matrix = name.rpartition(".")
            experts = range(config.n_routed_experts)
            values = np.stack([_matrix(read, f"{block}.{e}.{matrix}") for e in experts])
        elif parameter.kind == "fp8":
            values = _matrix(read, name)
        elif parameter.kind == "table":
            values = np.array(read(name)[1])
        elif parameter.kind == "bf16":
            values = decode(read(f"{name}.weight")[1], "bf16")
        else:
            values = decode(read(name)[1], "f32")
        found[name] = torch.from_numpy(np.ascontiguousarray(values))
    return found


def _matrix(read: Read, name: str) -> np.ndarray:
    dtype, codes = read(f"{name}.weight")
    parts = WEIGHTS[dtype]
    scales = read(parts.names(name)[1])[1]
    if parts.kind == "fp8":
        return decode_fp8_block(codes, scales)
    packed = np.ascontiguousarray(codes).view(np.uint8)
    if parts.kind == "mxfp4":
        return decode_mxfp4(packed, scales)
    return decode_nvfp4(packed, scales, float(read(f"{name}{parts.second}")[1]))
