"""Rules that a configuration must keep before its tensors are looked at."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from oracle.config_values import check

if TYPE_CHECKING:
    from oracle.config import ModelConfig


def check_published(hf: Mapping[str, Any]) -> None:
    """Nothing, if config.json asks for what is defined. Errors: ConfigError naming the key."""
    fixed = {
        "num_key_value_heads": 1,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
    }
    for key, only in fixed.items():
        check(hf.get(key) == only, key, hf.get(key), f"{only!r}, the only one defined")
    quantisation = hf.get("quantization_config")
    found = quantisation if isinstance(quantisation, Mapping) else {}
    formats = {"fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    for key, wanted in formats.items():
        check(found.get(key) == wanted, f"quantization_config.{key}", found.get(key), repr(wanted))


def check_consistent(config: "ModelConfig") -> None:
    """Nothing, if the sizes fit each other and the formats. Errors: ConfigError naming the key."""
    _check_sizes(config)
    _check_ratios(config)
    if config.dspark_block_size:
        _check_dspark(config)


def _check_sizes(c: "ModelConfig") -> None:
    products = {
        "hidden_size": c.dim,
        "moe_intermediate_size": c.moe_inter_dim,
        "q_lora_rank": c.q_lora_rank,
        "head_dim": c.head_dim,
        "num_attention_heads * head_dim": c.n_heads * c.head_dim,
        "o_groups * o_lora_rank": c.o_groups * c.o_lora_rank,
        "index_n_heads * index_head_dim": c.index_n_heads * c.index_head_dim,
    }
    check(c.n_heads % c.o_groups == 0, "o_groups", c.o_groups, f"a divisor of {c.n_heads} heads")
    products["num_attention_heads * head_dim / o_groups"] = c.n_heads * c.head_dim // c.o_groups
    for key, size in products.items():
        check(size % 128 == 0, key, size, "a multiple of 128, the weight block")
    unrotated = c.head_dim - c.rope_head_dim
    check(c.rope_head_dim % 2 == 0, "qk_rope_head_dim", c.rope_head_dim, "even: lanes pair up")
    check(
        unrotated > 0 and unrotated % 64 == 0,
        "head_dim - qk_rope_head_dim",
        unrotated,
        "a positive multiple of 64, the KV group",
    )
    width = c.index_head_dim
    check(
        width & (width - 1) == 0 and width % 32 == 0 and width >= c.rope_head_dim,
        "index_head_dim",
        width,
        f"a power of two, a multiple of 32, and at least {c.rope_head_dim}",
    )
    for key, part, total in (
        ("num_hash_layers", c.n_hash_layers, c.n_layers),
        ("num_experts_per_tok", c.n_activated_experts, c.n_routed_experts),
    ):
        check(part <= total, key, part, f"at most {total}")


def _check_ratios(c: "ModelConfig") -> None:
    ratios = c.compress_ratios
    check(
        c.stages >= 0,
        "compress_ratios",
        f"{len(ratios)} entries",
        f"one for each of {c.n_layers} layers and each stage after them",
    )
    for ratio in ratios:
        check(ratio >= 0 and ratio != 1, "compress_ratios", ratio, "0, or 2 and more")
    tail = ratios[c.n_layers :]
    check(not any(tail), "compress_ratios", tail, "0 for every stage after the trunk")


def _check_dspark(c: "ModelConfig") -> None:
    targets = np.asarray(c.dspark_target_layer_ids, np.int64)
    check(
        len(targets) > 0
        and bool((np.diff(targets) > 0).all())
        and bool(((targets >= 0) & (targets < c.n_layers)).all()),
        "dspark_target_layer_ids",
        c.dspark_target_layer_ids,
        f"strictly ascending layers of 0 to {c.n_layers - 1}",
    )
    noise = c.dspark_noise_token_id
    check(noise < c.vocab_size, "dspark_noise_token_id", noise, f"below {c.vocab_size}")
    check(c.dspark_markov_rank > 0, "dspark_markov_rank", c.dspark_markov_rank, "positive")
    check(c.stages > 0, "compress_ratios", c.compress_ratios, "a stage after the trunk for DSpark")
