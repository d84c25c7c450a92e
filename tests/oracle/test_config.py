"""Configurations: what a published config.json says, and every rule it may break."""

import copy
import json

import pytest

from oracle.config import read_config
from oracle.config_values import ConfigError
from tests.goldens import golden_folder

HF = json.loads((golden_folder("tiny-s") / "config.json").read_text(encoding="utf-8"))


def changed(**keys):
    """The tiny configuration with these keys replaced; None removes one."""
    config = copy.deepcopy(HF)
    for key, value in keys.items():
        place = config
        *path, last = key.split("__")
        for part in path:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return config


def test_the_tiny_configuration_is_read():
    c = read_config(HF)
    assert (c.dim, c.n_heads, c.head_dim, c.stages, c.mixing_rows) == (128, 4, 128, 2, 24)
    assert c.compress_ratios == (0, 4, 8, 4, 0, 0)
    assert [c.fine(n) for n in range(4)] == [False, True, False, True]
    assert c.dspark_target_layer_ids == (2, 3)
    assert c.original_seq_len == 32 and c.rope_factor == 16.0


def test_without_rope_scaling_nothing_is_stretched():
    assert read_config(changed(rope_scaling=None)).original_seq_len == 0


def test_without_dspark_keys_there_is_no_drafter():
    keys = {k: None for k in HF if k.startswith("dspark")}
    assert read_config(changed(**keys)).dspark_block_size == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", 2),
        ("n_shared_experts", 0),
        ("scoring_func", "softmax"),
        ("norm_topk_prob", False),
        ("hidden_size", 192),
        ("moe_intermediate_size", 64),
        ("q_lora_rank", 96),
        ("head_dim", 192),
        ("o_lora_rank", 96),
        ("o_groups", 3),
        ("index_n_heads", 0),
        ("qk_rope_head_dim", 63),
        ("qk_rope_head_dim", 32),
        ("qk_rope_head_dim", 128),
        ("index_head_dim", 96),
        ("index_head_dim", 32),
        ("compress_ratios", [0, 4, 8]),
        ("compress_ratios", [0, 4, 8, 4, 0, 4]),
        ("compress_ratios", [0, 4, -8, 4, 0, 0]),
        ("compress_ratios", [0, 4, 1, 4, 0, 0]),
        ("compress_ratios", [0, 4, 8, 4.0, 0, 0]),
        ("compress_ratios", "0,4,8"),
        ("num_hash_layers", 5),
        ("num_experts_per_tok", 5),
        ("index_topk", 0),
        ("sliding_window", 0),
        ("dspark_target_layer_ids", [3, 2]),
        ("dspark_target_layer_ids", [2, 4]),
        ("dspark_target_layer_ids", []),
        ("dspark_noise_token_id", 256),
        ("dspark_markov_rank", None),
        ("quantization_config__fmt", "e5m2"),
        ("quantization_config__scale_fmt", "float"),
        ("quantization_config__weight_block_size", [64, 128]),
        ("quantization_config", None),
        ("vocab_size", None),
        ("vocab_size", True),
        ("hidden_size", "128"),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("swiglu_limit", -1.0),
        ("rope_scaling__factor", 0),
        ("max_position_embeddings", 0),
    ],
)
def test_a_broken_rule_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError) as refusal:
        read_config(changed(**{key: value}))
    named = {"o_lora_rank": "o_lora_rank", "dspark_markov_rank": "dspark"}
    assert named.get(key, key.rpartition("__")[2]) in str(refusal.value)
    assert "it must be" in str(refusal.value)
