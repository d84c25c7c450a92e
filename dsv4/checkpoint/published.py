"""Configurations of published models and of small ones like them, as config.json spells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsv4.checkpoint.config import ModelConfig, read_config
from dsv4.checkpoint.expected import Layout
from dsv4.checkpoint.rules import refuse


@dataclass(frozen=True, slots=True)
class Size:
    """One model's sizes under their published keys.

    ratios: compress ratios of the trunk. dspark: block size, noise token, tapped layers (the
    trunk's last ones), rank.
    """

    keys: Mapping[str, Any]
    ratios: tuple[int, ...]
    dspark: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LayoutName:
    """A combination of tail and expert format that a checkpoint can be made in."""

    lineage: str
    nvfp4: bool
    summary: str

    @property
    def stages(self) -> int:
        """Blocks after the trunk."""
        return {"none": 0, "nextn": 1, "dspark": 3}[self.lineage]


LAYOUTS: Final[Mapping[str, LayoutName]] = {
    "official": LayoutName("none", False, "the FP8 + MXFP4 trunk alone"),
    "nextn": LayoutName("nextn", False, "FP8 + MXFP4 with its NextN block, the original release"),
    "0731": LayoutName("dspark", False, "FP8 + MXFP4 with three DSpark stages"),
    "nvfp4": LayoutName("nextn", True, "trunk experts in NVFP4, NextN block in MXFP4"),
    "0731-nvfp4": LayoutName("dspark", True, "trunk experts in NVFP4, DSpark stages in MXFP4"),
}

# What all of them have in common.
_SHARED: Final[Mapping[str, Any]] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "norm_topk_prob": True,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "expert_dtype": "fp4",
    "rms_norm_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
}
_FLASH: Final[Mapping[str, Any]] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_hash_layers": 3,
    "num_attention_heads": 64,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "q_lora_rank": 1024,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
}
_PRO: Final[Mapping[str, Any]] = {
    **_FLASH,
    "hidden_size": 7168,
    "moe_intermediate_size": 3072,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_routed_experts": 384,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
}
# Every branch of the model in 12 MB; the clamp of SwiGLU fires.
_TINY: Final[Mapping[str, Any]] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 5,
    "num_hash_layers": 2,
    "num_attention_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 2.0,
    "q_lora_rank": 128,
    "head_dim": 256,
    "qk_rope_head_dim": 64,
    "o_groups": 2,
    "o_lora_rank": 128,
    "sliding_window": 16,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 8,
    "max_position_embeddings": 1024,
}
# Wider than tiny, with coarse blocks as long as the published ones. The two epsilons differ, so
# that one taken for the other shows.
_SMALL: Final[Mapping[str, Any]] = {
    **_TINY,
    "vocab_size": 1024,
    "hidden_size": 512,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_hash_layers": 3,
    "num_attention_heads": 8,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "swiglu_limit": 10.0,
    "head_dim": 128,
    "o_groups": 4,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "hc_eps": 3e-6,
    "max_position_embeddings": 2048,
}
SIZES: Final[Mapping[str, Size]] = {
    "tiny": Size(_TINY, (0, 4, 8, 4, 8), (3, 511, 3, 32)),
    "small": Size(_SMALL, (0, 0, 4, 128, 4, 128), (5, 1023, 3, 64)),
    "flash": Size(_FLASH, (0, 0, *(4, 128) * 20, 4), (5, 128799, 3, 256)),
    "pro": Size(_PRO, (128, 128, *(4, 128) * 29, 4), (5, 128799, 3, 256)),
}


def published_config(
    size: str, layout: str, *, layers: int | None = None, experts: int | None = None
) -> dict[str, Any]:
    """The content of config.json for a size and a layout, the trunk cut to its first layers.

    Errors: Refusal for a number of layers or experts that the size cannot have.
    """
    chosen, tail = SIZES[size], LAYOUTS[layout]
    whole, active = len(chosen.ratios), chosen.keys["num_experts_per_tok"]
    n_layers = whole if layers is None else layers
    if not 1 <= n_layers <= whole:
        found = f"{n_layers} layers of {size}"
        raise refuse("mint-size", found, "the options", f"ask for 1 to {whole} layers")
    if experts is not None and experts < active:
        found = f"{experts} experts of {size}, of which a token takes {active}"
        raise refuse("mint-size", found, "the options", f"ask for {active} experts or more")
    context = 65536
    content: dict[str, Any] = {
        **_SHARED,
        **chosen.keys,
        "num_hidden_layers": n_layers,
        "num_hash_layers": min(chosen.keys["num_hash_layers"], n_layers),
        # The published DSpark release says 1 here as well.
        "num_nextn_predict_layers": min(tail.stages, 1),
        "compress_ratios": [*chosen.ratios[:n_layers], *[0] * tail.stages],
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": context,
            "type": "yarn",
        },
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }
    if experts is not None:
        content["n_routed_experts"] = experts
    if tail.lineage == "dspark":
        block, noise, targets, rank = chosen.dspark
        content["dspark_block_size"] = block
        content["dspark_noise_token_id"] = noise
        content["dspark_target_layer_ids"] = list(range(max(0, n_layers - targets), n_layers))
        content["dspark_markov_rank"] = rank
    if tail.nvfp4:
        manifest = nvfp4_manifest(n_layers)
        content["quantization_config"] |= {
            "moe_quant_algo": "NVFP4",
            "quantized_layers": manifest["quantized_layers"],
            "ignore": manifest["exclude_modules"],
        }
    return content


def nvfp4_manifest(n_layers: int) -> dict[str, Any]:
    """What an NVFP4 release says about itself in hf_quant_config.json, under `quantization`."""
    experts = {"quant_algo": "NVFP4", "group_size": 16}
    return {
        "quant_algo": "MIXED_PRECISION",
        "group_size": 16,
        "quantized_layers": {f"layers.{n}.ffn.experts": experts for n in range(n_layers)},
        "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    }


def layout_of_name(name: str, config: ModelConfig) -> Layout:
    """The layout of that name for a configuration: which blocks have NVFP4 experts."""
    tail = LAYOUTS[name]
    trunk = (block for block in config.blocks if block.startswith("layers."))
    return Layout(tail.lineage, frozenset(trunk if tail.nvfp4 else ()))


def model_config(
    size: str, layout: str, *, layers: int | None = None, experts: int | None = None
) -> ModelConfig:
    """The configuration of a size in a layout. Errors: as `published_config`."""
    content = published_config(size, layout, layers=layers, experts=experts)
    return read_config(content, f"size {size}, layout {layout}")
