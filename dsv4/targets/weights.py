"""The weights of a Qwen target's layers, as arrays on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4.targets.layers import WeightMatrix
from dsv4.targets.qwen_hybrid import LinearWeights, RoutedWeights


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projections and head norms; in hybrids wq holds all queries, then all output gates."""

    wq: WeightMatrix
    wk: WeightMatrix
    wv: WeightMatrix
    wo: WeightMatrix
    q_norm: Any
    k_norm: Any


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """The three matrices of an MLP."""

    gate: WeightMatrix
    up: WeightMatrix
    down: WeightMatrix


@dataclass(frozen=True, slots=True)
class TargetLayer:
    """One decoder layer."""

    input_norm: Any
    post_norm: Any
    mixer: AttentionWeights | LinearWeights
    mlp: DenseWeights | RoutedWeights
