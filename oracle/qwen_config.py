"""Configurations of Qwen targets: dense, and hybrids with gated DeltaNet layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Linear:
    """Sizes of the gated DeltaNet layers."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Sizes of a routed MLP."""

    count: int
    chosen: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class QwenConfig:
    """What the layers need; linear is None for a dense target.

    kinds: "full" or "linear" by layer. routed: layers whose MLP has experts. centred: norms
    multiply by 1 + weight, and q_proj holds an output gate. prefix: of tensor names.
    """

    hidden: int
    heads: int
    kv_heads: int
    width: int
    vocab: int
    eps: float
    theta: float
    rotary: int
    kinds: tuple[str, ...]
    tied: bool
    centred: bool
    prefix: str
    linear: Linear | None = None
    experts: Experts | None = None
    routed: tuple[int, ...] = ()


def read_qwen_config(content: Mapping[str, Any]) -> QwenConfig:
    """The configuration of a Qwen target. Errors: ValueError for a kind it does not know."""
    text = content.get("text_config", content)
    kind = text.get("model_type")
    if kind not in ("qwen3", "qwen3_next", "qwen3_5_text"):
        raise ValueError(f"model_type is {kind!r}; known are qwen3, qwen3_next, qwen3_5_text")
    hybrid = kind != "qwen3"
    layers = int(text["num_hidden_layers"])
    rope = text.get("rope_parameters") or {}
    share = float(rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25)))
    width = int(text["head_dim"])
    experts = None
    if int(text.get("num_experts") or 0):
        experts = Experts(
            int(text["num_experts"]),
            int(text["num_experts_per_tok"]),
            bool(text.get("norm_topk_prob", True)),
        )
    dense = set(text.get("mlp_only_layers") or ())
    return QwenConfig(
        hidden=int(text["hidden_size"]),
        heads=int(text["num_attention_heads"]),
        kv_heads=int(text["num_key_value_heads"]),
        width=width,
        vocab=int(text["vocab_size"]),
        eps=float(text["rms_norm_eps"]),
        theta=float(rope.get("rope_theta", text.get("rope_theta", 1e6))),
        rotary=int(width * share) if hybrid else width,
        kinds=_kinds(text, layers) if hybrid else ("full",) * layers,
        tied=bool(text.get("tie_word_embeddings", False)),
        centred=hybrid,
        prefix="model.language_model." if "text_config" in content else "model.",
        linear=_linear(text) if hybrid else None,
        experts=experts,
        routed=tuple(i for i in range(layers) if experts and i not in dense),
    )


def _kinds(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    listed = text.get("layer_types")
    if listed:
        return tuple("linear" if t == "linear_attention" else "full" for t in listed)
    every = int(text.get("full_attention_interval", 4))
    return tuple("full" if (i + 1) % every == 0 else "linear" for i in range(layers))


def _linear(text: Mapping[str, Any]) -> Linear:
    return Linear(
        int(text["linear_num_key_heads"]),
        int(text["linear_num_value_heads"]),
        int(text["linear_key_head_dim"]),
        int(text["linear_value_head_dim"]),
        int(text["linear_conv_kernel_dim"]),
    )
