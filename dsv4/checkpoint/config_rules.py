"""Rules that a configuration must keep before any tensor is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dsv4.checkpoint.config_keys import Keys
from dsv4.checkpoint.rules import refuse

if TYPE_CHECKING:
    from dsv4.checkpoint.config import ModelConfig

WEIGHT_BLOCK: Final = 128
KV_GROUP: Final = 64
INDEX_GROUP: Final = 32
MODEL_TYPE: Final = "deepseek_v4"
# Values that only one choice is defined for: rule, published key, flat key, value, and whether a
# file may leave it out.
_FIXED: Final = (
    ("one-kv-head", "num_key_value_heads", "", 1, True),
    ("one-shared-expert", "n_shared_experts", "n_shared_experts", 1, False),
    ("scoring", "scoring_func", "score_func", "sqrtsoftplus", False),
    ("normalised-weights", "norm_topk_prob", "", True, True),
)
_DSPARK: Final = (
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
)


def check_published(keys: Keys) -> None:
    """Nothing, if the file is of this architecture and asks for what is defined.

    Errors: Refusal naming the rule.
    """
    content = keys.content
    flat = "dim" in content and "hidden_size" not in content
    named = content.get("model_type")
    if named != MODEL_TYPE and not (flat and named is None):
        raise refuse(
            "architecture",
            f"model_type {named!r}, architectures {content.get('architectures')!r}",
            keys.where,
            f"give a checkpoint whose model_type is {MODEL_TYPE!r}",
        )
    for rule, published, flat_key, only, optional in _FIXED:
        key, value = keys.find(published, flat_key)
        if value is None and optional:
            continue
        if value != only or type(value) is not type(only):
            raise refuse(rule, f"{key} is {value!r}", keys.where, f"only {only!r} is defined")
    _check_format(keys, flat)
    _check_dspark_keys(keys)


def _check_format(keys: Keys, flat: bool) -> None:
    if flat:
        found: Mapping[str, Any] = keys.content
        wanted: dict[str, Any] = {"dtype": "fp8", "scale_fmt": "ue8m0"}
    else:
        quantisation = keys.content.get("quantization_config")
        found = quantisation if isinstance(quantisation, Mapping) else {}
        wanted = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [WEIGHT_BLOCK, WEIGHT_BLOCK],
        }
    for key, value in wanted.items():
        if found.get(key) != value:
            raise refuse(
                "block-format",
                f"{'' if flat else 'quantization_config.'}{key} is {found.get(key)!r}",
                keys.where,
                f"it must be {value!r}; convert the checkpoint",
            )


def _check_dspark_keys(keys: Keys) -> None:
    given = [k for k in _DSPARK if keys.content.get(k)]
    # Token 0 can be the noise token, and reads as absent above.
    missing = [k for k in _DSPARK if k not in given and k not in keys.content]
    empty = [k for k in _DSPARK if k not in given and k != "dspark_noise_token_id"]
    if given and (missing or empty):
        raise refuse(
            "dspark-keys",
            f"{', '.join(given)} without {', '.join(missing or empty)}",
            keys.where,
            "give all four dspark keys, or none",
        )


def check_consistent(config: ModelConfig, keys: Keys) -> None:
    """Nothing, if the sizes fit each other and the formats. Errors: Refusal naming the rule."""
    _check_widths(config, keys)
    _check_counts(config, keys)
    _check_ratios(config, keys)
    if config.dspark_block_size:
        _check_dspark(config, keys)


def _demand(holds: bool, rule: str, found: str, keys: Keys, wanted: str) -> None:
    if not holds:
        raise refuse(rule, found, keys.where, f"it must be {wanted}; correct the configuration")


def _check_widths(c: ModelConfig, keys: Keys) -> None:
    heads = c.n_heads * c.head_dim
    _demand(
        c.n_heads % c.o_groups == 0,
        "output-groups",
        f"o_groups is {c.o_groups} for {c.n_heads} heads",
        keys,
        "a divisor of the heads",
    )
    widths = {
        "hidden_size": c.dim,
        "moe_intermediate_size": c.moe_inter_dim,
        "q_lora_rank": c.q_lora_rank,
        "num_attention_heads * head_dim": heads,
        "head_dim": c.head_dim,
        "o_groups * o_lora_rank": c.o_groups * c.o_lora_rank,
        "num_attention_heads * head_dim / o_groups": heads // c.o_groups,
        "index_n_heads * index_head_dim": c.index_n_heads * c.index_head_dim,
    }
    for key, width in widths.items():
        _demand(
            width % WEIGHT_BLOCK == 0,
            "weight-blocks",
            f"{key} is {width}",
            keys,
            f"a multiple of {WEIGHT_BLOCK}",
        )
    still, turning = c.head_dim - c.rope_head_dim, c.rope_head_dim
    _demand(turning % 2 == 0, "rope-lanes", f"qk_rope_head_dim is {turning}", keys, "even")
    _demand(
        still > 0 and still % KV_GROUP == 0,
        "kv-groups",
        f"head_dim - qk_rope_head_dim is {still}",
        keys,
        f"a positive multiple of {KV_GROUP}",
    )
    width = c.index_head_dim
    _demand(
        width & (width - 1) == 0 and width % INDEX_GROUP == 0 and width >= turning,
        "index-width",
        f"index_head_dim is {width}",
        keys,
        f"a power of two, a multiple of {INDEX_GROUP}, and at least {turning}",
    )


def _check_counts(c: ModelConfig, keys: Keys) -> None:
    for rule, key, part, limit in (
        ("hash-layers", "num_hash_layers", c.n_hash_layers, c.n_layers),
        ("active-experts", "num_experts_per_tok", c.n_activated_experts, c.n_routed_experts),
    ):
        _demand(part <= limit, rule, f"{key} is {part}", keys, f"at most {limit}")
    _demand(c.index_topk >= 1, "index-topk", f"index_topk is {c.index_topk}", keys, "1 or more")
    window = c.window_size
    _demand(window >= 1, "window-size", f"sliding_window is {window}", keys, "1 or more")
    _demand(
        c.usable_positions >= 1,
        "positions",
        f"{c.max_seq_len} positions, of which {c.dspark_block_size} are for draft rows",
        keys,
        "more positions than draft rows",
    )


def _check_ratios(c: ModelConfig, keys: Keys) -> None:
    ratios = c.compress_ratios
    stated = keys.content.get("n_mtp_layers")
    _demand(
        c.stages >= 0 and stated in (None, c.stages),
        "ratio-count",
        f"{len(ratios)} compress_ratios for {c.n_layers} layers"
        + ("" if stated is None else f" and n_mtp_layers {stated}"),
        keys,
        "one for each layer, then one for each stage",
    )
    odd = [r for r in ratios if r < 0 or r == 1]
    _demand(not odd, "ratio-class", f"compress_ratios holds {odd[:1]}", keys, "0, or 2 and more")
    tail = ratios[c.n_layers :]
    found = f"compress_ratios ends with {list(tail)}"
    _demand(not any(tail), "tail-ratio", found, keys, "0 for every stage after the trunk")


def _check_dspark(c: ModelConfig, keys: Keys) -> None:
    targets = c.dspark_target_layer_ids
    ascending = all(a < b for a, b in zip(targets, targets[1:], strict=False))
    _demand(
        ascending and all(0 <= t < c.n_layers for t in targets),
        "dspark-targets",
        f"dspark_target_layer_ids is {list(targets)}",
        keys,
        f"strictly ascending layers of 0 to {c.n_layers - 1}",
    )
    noise = c.dspark_noise_token_id
    _demand(
        noise < c.vocab_size,
        "dspark-noise-token",
        f"dspark_noise_token_id is {noise}",
        keys,
        f"below {c.vocab_size}",
    )
    _demand(
        c.stages >= 1,
        "lineage",
        f"dspark keys, and {c.stages} stages after the trunk",
        keys,
        "a drafter of at least one stage, or no dspark keys",
    )
