"""Configurations in both spellings, and every rule that a configuration alone can break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import oracle.config
from dsv4.checkpoint.config import load_config, read_config
from dsv4.checkpoint.published import LAYOUTS, SIZES, published_config
from dsv4.errors import Refusal

TINY_S = Path(__file__).parents[1] / "data" / "tiny-s"

# The flat spelling of the reference's inference config, by published key.
FLAT = {
    "hidden_size": "dim",
    "moe_intermediate_size": "moe_inter_dim",
    "num_hidden_layers": "n_layers",
    "num_hash_layers": "n_hash_layers",
    "num_attention_heads": "n_heads",
    "num_experts_per_tok": "n_activated_experts",
    "scoring_func": "score_func",
    "routed_scaling_factor": "route_scale",
    "qk_rope_head_dim": "rope_head_dim",
    "rms_norm_eps": "norm_eps",
    "sliding_window": "window_size",
    "max_position_embeddings": "max_seq_len",
}
DROPPED = (
    "architectures", "model_type", "norm_topk_prob", "num_key_value_heads", "rope_scaling",
    "quantization_config", "num_nextn_predict_layers",
)  # fmt: skip


def flat_config(published: dict[str, Any]) -> dict[str, Any]:
    """What the reference's inference config says about the same model."""
    flat = {FLAT.get(k, k): v for k, v in published.items() if k not in DROPPED}
    scaling = published["rope_scaling"]
    flat["original_seq_len"] = scaling["original_max_position_embeddings"]
    flat["rope_factor"] = scaling["factor"]
    flat |= {"beta_fast": scaling["beta_fast"], "beta_slow": scaling["beta_slow"]}
    flat |= {"dtype": "fp8", "scale_fmt": "ue8m0"}
    flat["n_mtp_layers"] = len(published["compress_ratios"]) - published["num_hidden_layers"]
    return flat


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_spellings_are_the_same_model(size: str, layout: str) -> None:
    published = published_config(size, layout)
    assert read_config(flat_config(published)) == read_config(published)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", ["official", "nextn", "0731"])
def test_the_oracle_reads_the_same_numbers(size: str, layout: str) -> None:
    published = published_config(size, layout)
    ours, theirs = read_config(published), oracle.config.read_config(published)
    assert all(getattr(ours, f.name) == getattr(theirs, f.name) for f in fields(theirs))
    assert (ours.stages, ours.mixing_rows) == (theirs.stages, theirs.mixing_rows)


def test_layers_of_the_published_model_fall_into_their_classes() -> None:
    config = read_config(published_config("flash", "0731"))
    classes = [config.layer_class(n) for n in range(46)]
    assert classes[:4] == ["window", "window", "fine", "coarse"]
    assert [classes.count(kind) for kind in ("window", "fine", "coarse")] == [2 + 3, 21, 20]
    assert [n for n in range(43) if config.is_hash_layer(n)] == [0, 1, 2]
    assert not config.uses_yarn(0) and config.uses_yarn(2) and not config.uses_yarn(43)
    assert config.blocks[42:] == ("layers.42.", "mtp.0.", "mtp.1.", "mtp.2.")
    assert config.usable_positions == 1048576 - 5


def test_the_larger_model_has_no_layer_that_sees_its_window_only() -> None:
    config = read_config(published_config("pro", "nextn"))
    classes = [config.layer_class(n) for n in range(61)]
    assert [classes.count(kind) for kind in ("window", "fine", "coarse")] == [0, 30, 31]


def test_a_model_without_stretched_rotation_says_nothing_about_it() -> None:
    content = published_config("tiny", "official") | {"rope_scaling": None}
    config = read_config(content)
    assert config.original_seq_len == 0
    assert not any(config.uses_yarn(n) for n in range(config.n_layers))


def test_a_folder_is_read_from_its_own_file_or_from_the_inference_one(tmp_path: Path) -> None:
    (tmp_path / "inference").mkdir()
    (tmp_path / "inference" / "config.json").write_bytes((TINY_S / "config.json").read_bytes())
    assert load_config(tmp_path) == load_config(TINY_S)


Change = Callable[[dict[str, Any]], Any]


def put(**values: Any) -> Change:
    return lambda c: c.update(values)


def quantised(**values: Any) -> Change:
    return lambda c: c["quantization_config"].update(values)


# Changes to the configuration of tiny 0731, each breaking one rule.
BROKEN: dict[str, tuple[str, Change]] = {
    "another model": ("architecture", put(model_type="qwen3")),
    "no model type": ("architecture", lambda c: c.pop("model_type")),
    "a missing key": ("config-value", lambda c: c.pop("q_lora_rank")),
    "a fraction": ("config-value", put(hidden_size=256.0)),
    "a truth value": ("config-value", put(hc_mult=True)),
    "text": ("config-value", put(num_hidden_layers="5")),
    "NaN": ("config-value", put(rope_theta=float("nan"))),
    "zero epsilon": ("config-value", put(rms_norm_eps=0)),
    "negative clamp": ("config-value", put(swiglu_limit=-1.0)),
    "ratios of another kind": ("config-value", put(compress_ratios=[0, 4, 8.0, 4, 8, 0, 0, 0])),
    "scaling that is a list": ("config-value", put(rope_scaling=[16])),
    "two spellings": ("config-contradiction", put(dim=512)),
    "two kv heads": ("one-kv-head", put(num_key_value_heads=2)),
    "no shared expert": ("one-shared-expert", put(n_shared_experts=0)),
    "sigmoid": ("scoring", put(scoring_func="sigmoid")),
    "weights as they are": ("normalised-weights", put(norm_topk_prob=False)),
    "hidden width": ("weight-blocks", put(hidden_size=192)),
    "expert width": ("weight-blocks", put(moe_intermediate_size=96)),
    "group width": ("weight-blocks", put(o_groups=1, o_lora_rank=64)),
    "still lanes": ("kv-groups", put(qk_rope_head_dim=96)),
    "only rotating lanes": ("kv-groups", put(qk_rope_head_dim=256)),
    "odd rotation": ("rope-lanes", put(qk_rope_head_dim=63)),
    "groups": ("output-groups", put(o_groups=3)),
    "indexer of 96": ("index-width", put(index_head_dim=96)),
    "indexer of 32": ("index-width", put(index_head_dim=32)),
    "too few ratios": ("ratio-count", put(compress_ratios=[0, 4, 8, 4])),
    "another stage count": ("ratio-count", put(n_mtp_layers=1)),
    "ratio 1": ("ratio-class", put(compress_ratios=[0, 4, 1, 4, 8, 0, 0, 0])),
    "ratio -4": ("ratio-class", put(compress_ratios=[0, -4, 8, 4, 8, 0, 0, 0])),
    "a stage that compresses": ("tail-ratio", put(compress_ratios=[0, 4, 8, 4, 8, 0, 4, 0])),
    "hash layers": ("hash-layers", put(num_hash_layers=6)),
    "active experts": ("active-experts", put(num_experts_per_tok=9)),
    "no block picked": ("index-topk", put(index_topk=0)),
    "no window": ("window-size", put(sliding_window=0)),
    "three dspark keys": ("dspark-keys", lambda c: c.pop("dspark_markov_rank")),
    "a drafter of no block": ("dspark-keys", put(dspark_block_size=0)),
    "no tapped layer": ("dspark-keys", put(dspark_target_layer_ids=[])),
    "descending taps": ("dspark-targets", put(dspark_target_layer_ids=[2, 4, 3])),
    "a tap twice": ("dspark-targets", put(dspark_target_layer_ids=[2, 2, 4])),
    "a tap past the trunk": ("dspark-targets", put(dspark_target_layer_ids=[3, 4, 5])),
    "noise token": ("dspark-noise-token", put(dspark_noise_token_id=512)),
    "a drafter without stages": ("lineage", put(compress_ratios=[0, 4, 8, 4, 8])),
    "no positions": ("positions", put(max_position_embeddings=3)),
    "e5m2": ("block-format", quantised(fmt="e5m2")),
    "float scales": ("block-format", quantised(scale_fmt="float")),
    "blocks of 64": ("block-format", quantised(weight_block_size=[64, 64])),
    "no quantisation": ("block-format", lambda c: c.pop("quantization_config")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_refused_by_the_rules_name(name: str) -> None:
    rule, change = BROKEN[name]
    content = published_config("tiny", "0731")
    change(content)
    with pytest.raises(Refusal, match=f"^rule {rule}:") as refused:
        read_config(content, "there/config.json")
    assert "there/config.json" in str(refused.value)
    # Rule, what was found, where, what to do next.
    assert len(str(refused.value).splitlines()) == 4


def test_the_flat_spelling_is_held_to_the_same_formats() -> None:
    flat = flat_config(published_config("tiny", "0731"))
    with pytest.raises(Refusal, match="rule block-format"):
        read_config(flat | {"dtype": "bf16"})
    with pytest.raises(Refusal, match="rule scoring"):
        read_config(flat | {"score_func": "softmax"})


def test_the_expert_type_may_be_missing() -> None:
    content = published_config("tiny", "0731")
    del content["expert_dtype"]
    assert read_config(content).expert_dtype == ""


def test_the_published_stage_count_of_the_drafter_is_not_believed() -> None:
    # num_nextn_predict_layers is 1 in the release although three stages are stored.
    content = published_config("flash", "0731")
    assert (content["num_nextn_predict_layers"], read_config(content).stages) == (1, 3)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_a_file_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(Refusal, match="rule config-file"):
        load_config(tmp_path)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="rule config-file"):
        load_config(tmp_path)
