"""The weights of a model as a dictionary: names, shapes and stored kinds, from the census.

A matrix is named as published without `.weight`; the routed experts of a block are stacked:
`layers.0.ffn.experts.w1` [E,F,D]. `layers.0.ffn.gate.tid2eid` is a table of integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.expected import Layout, expected_tensors
from tools.train import rounding
from tools.train.laws import Law

Kind = Literal["fp8", "fp4", "bf16", "f32", "table"]
Weights = Mapping[str, torch.Tensor]
_KINDS: Mapping[str, Kind] = {
    "F8_E4M3": "fp8",
    "I8": "fp4",
    "BF16": "bf16",
    "F32": "f32",
    "I64": "table",
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(w\d)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of the dictionary: how a release stores it, and its shape here."""

    kind: Kind
    shape: tuple[int, ...]


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Every weight of the model and its drafter, in the order of the census."""
    found: dict[str, Parameter] = {}
    lineage = "dspark" if config.stages else "none"
    for name, entry in expected_tensors(config, Layout(lineage)).items():
        if entry.dtype == "F8_E8M0":
            continue
        kind = _KINDS[entry.dtype]
        shape, matrix = entry.shape, name.removesuffix(".weight")
        if expert := _EXPERT.fullmatch(matrix):
            matrix = f"{expert[1]}.{expert[3]}"
            shape = (config.n_routed_experts, shape[0], 2 * shape[1])
        found[matrix] = Parameter(kind, shape)
    return found


def is_trunk(name: str) -> bool:
    """Whether a weight belongs to the trunk and not to the drafter."""
    return not name.startswith("mtp.")


def initial(config: ModelConfig, tables: Weights, seed: int) -> dict[str, torch.Tensor]:
    """Fresh float32 weights on the CPU; hash tables are given.

    Matrices have deviation 1/sqrt(columns), those that write into the streams less the more of
    them there are; every sub-block starts by reading mostly one copy and keeping all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in parameters(config).items():
        if parameter.kind == "table":
            weights[name] = tables[name]
        else:
            weights[name] = _initial(config, name, parameter, generator)
    return weights


def _initial(
    c: ModelConfig, name: str, parameter: Parameter, generator: torch.Generator
) -> torch.Tensor:
    shape, last = parameter.shape, name.rpartition(".")[2]
    if last.endswith("_base"):
        return _mixing_base(c, name)
    if last.endswith("_scale"):
        return torch.full(shape, 0.3)
    if "norm" in last:
        return torch.ones(shape)
    if last in ("ape", "bias", "attn_sink"):
        return torch.zeros(shape)
    deviation = 1.0 / math.sqrt(shape[-1])
    if last.endswith("_fn"):
        deviation *= 0.3
    elif last in ("wo_b", "w2"):
        deviation /= math.sqrt(2.0 * c.n_layers)
    elif last in ("embed", "markov_w1"):
        deviation = 0.5
    elif last == "head":
        deviation *= 0.3
    elif name.endswith(("confidence_head.proj", "markov_head.markov_w2")):
        deviation *= 0.1
    return torch.randn(shape, generator=generator) * deviation


def _mixing_base(c: ModelConfig, name: str) -> torch.Tensor:
    """Biases with which a sub-block reads one copy most, writes to all, and mixes little."""
    copies, parts = c.hc_mult, name.split(".")
    number = int(parts[1]) + (c.n_layers if parts[0] == "mtp" else 0) if len(parts) > 1 else 0
    own = (2 * number + (parts[-1] == "hc_ffn_base")) % copies
    pre = torch.full((copies,), -1.5)
    if parts[-1] == "hc_head_base":
        return pre
    pre[own] = 0.5
    post = torch.zeros(copies)
    post[own] = 0.5
    comb = 4.0 * torch.eye(copies)
    return torch.cat([pre, post, comb.flatten()])


def prepared(weights: Weights, config: ModelConfig, law: Law) -> dict[str, torch.Tensor]:
    """The weights as a law computes with them; every matrix is rounded once.

    Islands are kept in `law.real`, matrices of products in `law.compute`.
    """
    kinds = parameters(config)
    return {name: _prepared(name, w, kinds[name].kind, law) for name, w in weights.items()}


def _prepared(name: str, w: torch.Tensor, kind: Kind, law: Law) -> torch.Tensor:
    if kind == "table":
        return w
    if law.weights and kind != "f32":
        w = rounding.through(w, stored_value(kind))
    product = kind in ("fp8", "fp4") or name.endswith("indexer.weights_proj")
    return w.to(law.compute if product else law.real)


def stored_value(kind: Kind) -> Callable[[torch.Tensor], torch.Tensor]:
    """The rounding that a stored kind of matrix stands for."""
    return {
        "fp8": rounding.fp8_weights,
        "fp4": rounding.fp4_weights,
        "bf16": rounding.to_bf16,
    }[kind]
