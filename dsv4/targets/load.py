"""Loads a Qwen target from its published files onto a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.checkpoint.made import MadeTensors, opened
from dsv4.checkpoint.reader import Checkpoint
from dsv4.drafters.quant import bf16_to_f32
from dsv4.runtime.device import Device
from dsv4.speculation.refusals import refuse
from dsv4.targets.config import TargetConfig, target_config
from dsv4.targets.layers import Ops, WeightMatrix, bf16_matrix
from dsv4.targets.qwen3 import QwenTarget
from dsv4.targets.qwen_hybrid import LinearWeights, RoutedWeights
from dsv4.targets.weights import AttentionWeights, DenseWeights, TargetLayer


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Stored tensors by name, checked against the shape that the configuration implies."""

    checkpoint: Checkpoint | MadeTensors
    ops: Ops

    def has(self, name: str) -> bool:
        """Whether it is stored."""
        return name in self.checkpoint

    def bits(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> np.ndarray:
        """The stored bits. Errors: DrafterRefusal when missing, misshapen or of another type."""
        if name not in self.checkpoint:
            raise refuse(
                "tensor-missing", f"tensor {name}", "missing", "fetch the checkpoint again"
            )
        entry = self.checkpoint.entry(name)
        if entry.shape != shape:
            raise refuse(
                "tensor-shape",
                f"tensor {name}",
                f"shape {list(entry.shape)}, not {list(shape)}",
                "use the configuration of this checkpoint",
            )
        if entry.dtype not in dtypes:
            raise refuse("dtype", f"tensor {name}", entry.dtype, f"store it as {dtypes[0]}")
        return self.checkpoint.tensor(name)

    def matrix(self, name: str, rows: int, columns: int) -> WeightMatrix:
        """A bf16 matrix on the device."""
        return bf16_matrix(self.ops, self.bits(name, (rows, columns), ("BF16",)))

    def values(self, name: str, *shape: int) -> np.ndarray:
        """A bf16 or f32 tensor as float32 numbers."""
        stored = self.bits(name, shape, ("BF16", "F32"))
        return stored if stored.dtype == np.float32 else bf16_to_f32(stored)


def load_target(
    folder: Path | MadeTensors, device: Device, *, host_embedding: bool = False
) -> QwenTarget:
    """The target of a folder, or made. Errors: Refusal naming the rule that its files break.

    host_embedding: embedding rows are looked up on the host; a head that shares them stays.
    """
    with opened(folder) as checkpoint:
        content, _ = checkpoint.config()
        source = TensorSource(checkpoint, Ops(device))
        return build_target(target_config(content), source, host_embedding=host_embedding)


def build_target(
    c: TargetConfig, source: TensorSource, *, host_embedding: bool = False
) -> QwenTarget:
    """The target of a configuration and its tensors."""
    ops, at = source.ops, c.prefix
    stored = source.bits(f"{at}embed_tokens.weight", (c.vocab, c.hidden), ("BF16",))
    table = None if host_embedding and not c.tied else ops.bits(stored)
    if c.tied:
        head = WeightMatrix("bf16", c.vocab, c.hidden, table)
    else:
        head = source.matrix("lm_head.weight", c.vocab, c.hidden)
    layers = tuple(_layer(c, source, i) for i in range(len(c.kinds)))
    linear = [i for i, kind in enumerate(c.kinds) if kind == "linear"]
    final = _gain(c, source, f"{at}norm.weight", c.hidden)
    index = {i: n for n, i in enumerate(linear)}
    host_table = np.array(stored) if host_embedding else None
    return QwenTarget(c, ops, table, head, final, layers, index, host_table)


def _gain(c: TargetConfig, source: TensorSource, name: str, width: int) -> Any:
    values = source.values(name, width)
    return source.ops.vector(values + np.float32(1) if c.centred else values)


def _layer(c: TargetConfig, source: TensorSource, i: int) -> TargetLayer:
    at = f"{c.prefix}layers.{i}."
    full = c.kinds[i] == "full"
    return TargetLayer(
        _gain(c, source, f"{at}input_layernorm.weight", c.hidden),
        _gain(c, source, f"{at}post_attention_layernorm.weight", c.hidden),
        _attention(c, source, f"{at}self_attn.") if full else _linear(c, source, at),
        _routed(c, source, f"{at}mlp.")
        if i in c.routed
        else DenseWeights(*_dense(c, source, f"{at}mlp.", c.ff)),
    )


def _attention(c: TargetConfig, source: TensorSource, at: str) -> AttentionWeights:
    lanes, kv, parts = c.heads * c.width, c.kv_heads * c.width, 2 if c.centred else 1
    wq = source.bits(f"{at}q_proj.weight", (parts * lanes, c.hidden), ("BF16",))
    # Stored head by head, query then gate; kept as all queries, then all gates.
    wq = wq.reshape(c.heads, parts, c.width, c.hidden).transpose(1, 0, 2, 3)
    return AttentionWeights(
        bf16_matrix(source.ops, wq.reshape(parts * lanes, c.hidden)),
        source.matrix(f"{at}k_proj.weight", kv, c.hidden),
        source.matrix(f"{at}v_proj.weight", kv, c.hidden),
        source.matrix(f"{at}o_proj.weight", c.hidden, lanes),
        _gain(c, source, f"{at}q_norm.weight", c.width),
        _gain(c, source, f"{at}k_norm.weight", c.width),
    )


def _dense(
    c: TargetConfig, source: TensorSource, at: str, width: int
) -> tuple[WeightMatrix, WeightMatrix, WeightMatrix]:
    return (
        source.matrix(f"{at}gate_proj.weight", width, c.hidden),
        source.matrix(f"{at}up_proj.weight", width, c.hidden),
        source.matrix(f"{at}down_proj.weight", c.hidden, width),
    )


def _routed(c: TargetConfig, source: TensorSource, at: str) -> RoutedWeights:
    return RoutedWeights(
        source.matrix(f"{at}gate.weight", c.n_experts, c.hidden),
        tuple(_dense(c, source, f"{at}experts.{e}.", c.expert_ff) for e in range(c.n_experts)),
        _dense(c, source, f"{at}shared_expert.", c.shared_ff),
        source.matrix(f"{at}shared_expert_gate.weight", 1, c.hidden),
    )


def _linear(c: TargetConfig, source: TensorSource, at: str) -> LinearWeights:
    assert c.linear is not None
    s, at = c.linear, f"{at}linear_attn."
    qkv, z, b, a = _projections(c, source, at)
    ops = source.ops
    conv = source.values(f"{at}conv1d.weight", s.channels, 1, s.taps)[:, 0]
    return LinearWeights(
        bf16_matrix(ops, qkv),
        bf16_matrix(ops, z),
        bf16_matrix(ops, b),
        bf16_matrix(ops, a),
        ops.vector(conv),
        ops.vector(source.values(f"{at}A_log", s.value_heads)),
        ops.vector(source.values(f"{at}dt_bias", s.value_heads)),
        ops.vector(source.values(f"{at}norm.weight", s.value_width)),
        source.matrix(f"{at}out_proj.weight", c.hidden, s.values),
    )


def _projections(
    c: TargetConfig, source: TensorSource, at: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of q|k|v, of z, of b and of a, heads ascending, from either packing."""
    assert c.linear is not None
    s, share = c.linear, c.linear.value_heads // c.linear.key_heads
    if source.has(f"{at}in_proj_qkv.weight"):
        sizes = dict(qkv=s.channels, z=s.values, b=s.value_heads, a=s.value_heads)
        qkv, z, b, a = (
            source.bits(f"{at}in_proj_{n}.weight", (rows, c.hidden), ("BF16",))
            for n, rows in sizes.items()
        )
        return qkv, z, b, a
    packed = source.bits(
        f"{at}in_proj_qkvz.weight", (2 * s.keys + 2 * s.values, c.hidden), ("BF16",)
    )
    group = share * s.value_width
    heads = packed.reshape(s.key_heads, -1, c.hidden)
    borders = [s.key_width, 2 * s.key_width, 2 * s.key_width + group]
    q, k, v, z = (p.reshape(-1, c.hidden) for p in np.split(heads, borders, axis=1))
    ba = source.bits(f"{at}in_proj_ba.weight", (2 * s.value_heads, c.hidden), ("BF16",))
    b, a = (
        p.reshape(-1, c.hidden)
        for p in np.split(ba.reshape(s.key_heads, 2 * share, c.hidden), 2, axis=1)
    )
    return np.concatenate([q, k, v]), z, b, a
