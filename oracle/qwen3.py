"""The parts every Qwen layer shares: weights by name, gated attention, dense and routed MLPs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from oracle.formats import Floats, decode
from oracle.qwen_config import QwenConfig
from oracle.rms_norm import rms_norm
from oracle.rope_neox import rope_neox
from oracle.sdpa import grouped_attention
from oracle.swiglu import swiglu
from oracle.topk import top_k

_FORMATS = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64"}


@dataclass(frozen=True, slots=True)
class Tensors:
    """Stored tensors as float64 numbers by name: (safetensors dtype, bits)."""

    stored: Mapping[str, tuple[str, np.ndarray]]

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.stored

    def __getitem__(self, name: str) -> Floats:
        """The values of a tensor. Errors: ValueError when it is missing or no float."""
        if name not in self.stored:
            raise ValueError(f"tensor {name} is missing")
        dtype, bits = self.stored[name]
        if dtype not in _FORMATS:
            raise ValueError(f"tensor {name} is {dtype}; known are {', '.join(_FORMATS)}")
        return decode(bits, _FORMATS[dtype])


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router decided: logits [T,E], experts and their weights [T,A], heaviest first."""

    logits: Floats
    experts: np.ndarray
    weights: Floats


def gain(config: QwenConfig, weight: Floats) -> Floats:
    """What a norm multiplies by: the weight, or 1 + weight in hybrids."""
    return weight + 1.0 if config.centred else weight


def attention_inputs(
    config: QwenConfig, w: Tensors, at: str, n: Floats, positions: np.ndarray, table: Floats
) -> tuple[Floats, Floats, Floats, Floats | None]:
    """Rotated queries and keys, values, and the output gate of hybrids.

    Shapes: n [T,D] -> [T,H,K], [T,G,K], [T,G,K], [T,H,K] or None.
    """
    rows, width = len(n), config.width
    q, gate = (n @ w[f"{at}q_proj.weight"].T).reshape(rows, config.heads, -1), None
    if config.centred:
        q, gate = q[..., :width], q[..., width:]
    k = (n @ w[f"{at}k_proj.weight"].T).reshape(rows, config.kv_heads, width)
    v = (n @ w[f"{at}v_proj.weight"].T).reshape(rows, config.kv_heads, width)
    q = rms_norm(q, gain(config, w[f"{at}q_norm.weight"]), eps=config.eps)
    k = rms_norm(k, gain(config, w[f"{at}k_norm.weight"]), eps=config.eps)
    q, k = rope_neox(q, table, positions).value, rope_neox(k, table, positions).value
    return q, k, v, gate


def attention_output(
    w: Tensors, at: str, q: Floats, k: Floats, v: Floats, start: int, gate: Floats | None
) -> Floats:
    """Causal attention of rows start.. over all keys, gated, projected. [T,D]."""
    rows = np.arange(len(q))[:, None] + start
    out = grouped_attention(q, k, v, np.arange(len(k))[None, :] <= rows)
    if gate is not None:
        out = out / (1.0 + np.exp(-gate))
    return np.asarray(out.reshape(len(q), -1) @ w[f"{at}o_proj.weight"].T)


def dense_mlp(w: Tensors, at: str, n: Floats) -> Floats:
    """(silu(n Wg^T) * n Wu^T) Wd^T. [T,D]."""
    hidden = swiglu(n @ w[f"{at}gate_proj.weight"].T, n @ w[f"{at}up_proj.weight"].T, 0.0)
    return np.asarray(hidden @ w[f"{at}down_proj.weight"].T)


def routed_mlp(config: QwenConfig, w: Tensors, at: str, n: Floats) -> tuple[Floats, Routing]:
    """Chosen experts by weight, plus the shared expert times its gate, and the choice."""
    assert config.experts is not None
    logits = n @ w[f"{at}gate.weight"].T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    chosen = top_k(p, config.experts.chosen)
    weights = np.take_along_axis(p, chosen, axis=1)
    if config.experts.renormalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    out = dense_mlp(w, f"{at}shared_expert.", n)
    out /= 1.0 + np.exp(-(n @ w[f"{at}shared_expert_gate.weight"].T))
    for t, row in enumerate(chosen):
        for expert, weight in zip(row, weights[t], strict=True):
            out[t] += weight * dense_mlp(w, f"{at}experts.{expert}.", n[t : t + 1])[0]
    return out, Routing(logits, chosen, weights)
