"""Configurations of Qwen targets: dense, and hybrids with gated DeltaNet layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.checkpoint.config import read_json_object
from dsv4.speculation.refusals import refuse

KNOWN: Final = ("qwen3", "qwen3_next", "qwen3_5_text")


@dataclass(frozen=True, slots=True)
class LinearSizes:
    """Sizes of the gated DeltaNet layers."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int

    @property
    def keys(self) -> int:
        """Channels of all key heads."""
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        """Channels of all value heads."""
        return self.value_heads * self.value_width

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A Qwen target. kinds: "full" or "linear" by layer; linear is None for a dense target.

    centred: norms multiply by 1 + weight, and queries come with an output gate. routed: layers
    with experts, of which `chosen` work. prefix: of tensor names.
    """

    kind: str
    hidden: int
    heads: int
    kv_heads: int
    width: int
    ff: int
    vocab: int
    eps: float
    theta: float
    rotary: int
    kinds: tuple[str, ...]
    tied: bool
    centred: bool
    prefix: str
    linear: LinearSizes | None
    routed: tuple[int, ...]
    n_experts: int
    chosen: int
    expert_ff: int
    shared_ff: int
    renormalise: bool
    eos: tuple[int, ...]


def read_target_config(folder: Path) -> TargetConfig:
    """The configuration of a target's folder. Errors: Refusal naming the rule."""
    return target_config(read_json_object(folder / "config.json", "config-file"))


def target_config(content: Mapping[str, Any]) -> TargetConfig:
    """The configuration in a JSON document. Errors: DrafterRefusal with the code of the rule."""
    text = content.get("text_config", content)
    kind = text.get("model_type")
    if kind not in KNOWN:
        raise refuse(
            "architecture",
            "model_type of a target's config.json",
            repr(kind),
            f"targets here are {', '.join(KNOWN)}",
        )
    if text.get("attention_bias"):
        raise refuse("attention-bias", "a target's config.json", "true", "use another target")
    hybrid = kind != "qwen3"
    rope = text.get("rope_parameters") or {}
    scaling = rope.get("rope_type", (text.get("rope_scaling") or {}).get("rope_type", "default"))
    if scaling != "default":
        raise refuse("rope-type", "a target's config.json", repr(scaling), "use default rotation")
    layers, width = _count(text, "num_hidden_layers"), _count(text, "head_dim")
    share = float(rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25)))
    experts = int(text.get("num_experts") or 0)
    dense = set(text.get("mlp_only_layers") or ())
    step = int(text.get("decoder_sparse_step") or 1)
    routed = [i for i in range(layers) if experts and i not in dense and (i + 1) % step == 0]
    heads, kv_heads = _count(text, "num_attention_heads"), _count(text, "num_key_value_heads")
    if heads % kv_heads:
        raise refuse(
            "head-groups", "a target's config.json", f"{kv_heads} of {heads}", "use a divisor"
        )
    return TargetConfig(
        kind=kind,
        hidden=_count(text, "hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        ff=_count(text, "intermediate_size"),
        vocab=_count(text, "vocab_size"),
        eps=float(_needed(text, "rms_norm_eps")),
        theta=float(rope.get("rope_theta", text.get("rope_theta", 1e6))),
        rotary=int(width * share) if hybrid else width,
        kinds=_kinds(text, layers) if hybrid else ("full",) * layers,
        tied=bool(text.get("tie_word_embeddings", False)),
        centred=hybrid,
        prefix="model.language_model." if "text_config" in content else "model.",
        linear=_linear(text) if hybrid else None,
        routed=tuple(routed),
        n_experts=experts if routed else 0,
        chosen=int(text.get("num_experts_per_tok") or 0),
        expert_ff=int(text.get("moe_intermediate_size") or 0),
        shared_ff=int(text.get("shared_expert_intermediate_size") or 0),
        renormalise=bool(text.get("norm_topk_prob", True)),
        eos=_ids(text.get("eos_token_id", content.get("eos_token_id"))),
    )


def _needed(text: Mapping[str, Any], key: str) -> Any:
    found = text.get(key)
    if found is None:
        raise refuse("key-missing", "a target's config.json", f"no {key}", f"add {key}")
    return found


def _count(text: Mapping[str, Any], key: str) -> int:
    found = _needed(text, key)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise refuse("value", f"{key} of a target", repr(found), "it is a whole number above 0")
    return found


def _kinds(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    listed = text.get("layer_types")
    if listed is None:
        every = int(text.get("full_attention_interval", 4))
        return tuple("full" if (i + 1) % every == 0 else "linear" for i in range(layers))
    if len(listed) != layers:
        raise refuse(
            "layer-types-length", "a target's layer_types", f"{len(listed)} of {layers}", "fix it"
        )
    return tuple("linear" if t == "linear_attention" else "full" for t in listed)


def _linear(text: Mapping[str, Any]) -> LinearSizes:
    sizes = LinearSizes(
        _count(text, "linear_num_key_heads"),
        _count(text, "linear_num_value_heads"),
        _count(text, "linear_key_head_dim"),
        _count(text, "linear_value_head_dim"),
        _count(text, "linear_conv_kernel_dim"),
    )
    if sizes.value_heads % sizes.key_heads:
        raise refuse(
            "head-groups",
            "a target's linear layers",
            f"{sizes.key_heads} key heads, {sizes.value_heads} value heads",
            "use a divisor",
        )
    return sizes


def _ids(found: Any) -> tuple[int, ...]:
    if found is None:
        return ()
    return tuple(int(i) for i in found) if isinstance(found, list) else (int(found),)
