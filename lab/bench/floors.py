"""The bytes that a decode step cannot do without, from the shapes of the model.

Every weight that a row needs is read once; of the routed experts only those that are chosen. What
several rows share is read once for all of them. Caches, activations and rows of the embedding are
small beside that and left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dsv4.checkpoint.config import LayerClass, ModelConfig
from dsv4.checkpoint.expected import Layout, expected_tensors

# Tables of which a row is picked.
_NEVER_STREAMED: Final = ("tid2eid", "embed.weight")


def distinct_experts(config: ModelConfig, rows: int) -> float:
    """Experts that some rows choose between them when each chooses at random."""
    share = config.n_activated_experts / config.n_routed_experts
    return config.n_routed_experts * (1.0 - (1.0 - share) ** rows)


def component_bytes(config: ModelConfig, rows: int = 1) -> dict[str, float]:
    """Bytes of a step of that many rows by component of the model, layers and head."""
    found: dict[str, float] = {}
    share = distinct_experts(config, rows) / config.n_routed_experts
    for _, part, size in _trunk(config):
        found[part] = found.get(part, 0.0) + (size * share if part == "routed experts" else size)
    return found


def step_bytes(config: ModelConfig, rows: int = 1) -> float:
    """Bytes of a whole step of that many rows."""
    return sum(component_bytes(config, rows).values())


def layer_bytes(config: ModelConfig, rows: int = 1) -> dict[LayerClass, float]:
    """Bytes of one layer of each kind: its window only, ratio 4 (fine), other ratios (coarse)."""
    share = distinct_experts(config, rows) / config.n_routed_experts
    sums: dict[int, float] = {}
    for name, part, size in _trunk(config):
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            counted = size * share if part == "routed experts" else size
            sums[layer] = sums.get(layer, 0.0) + counted
    kinds: dict[LayerClass, list[float]] = {}
    for layer, total in sums.items():
        kinds.setdefault(config.layer_class(layer), []).append(total)
    return {kind: sum(found) / len(found) for kind, found in kinds.items()}


def rates(config: ModelConfig, bytes_per_s: float) -> Mapping[str, float]:
    """Seconds of a step at that bandwidth, and the tokens a second they allow."""
    time_s = step_bytes(config) / bytes_per_s
    return {"time_s": time_s, "tokens_per_s": 1.0 / time_s}


@functools.cache
def _trunk(config: ModelConfig) -> tuple[tuple[str, str, int], ...]:
    """Name, component and bytes of every tensor that the trunk and the head read in a step."""
    bare = replace(config, compress_ratios=config.compress_ratios[: config.n_layers])
    return tuple(
        (name, entry.component, entry.size_bytes)
        for name, entry in expected_tensors(bare, Layout("none")).items()
        if not name.endswith(_NEVER_STREAMED)
    )
