"""Configurations of drafters: every place, every family, every refusal by its code."""

from typing import Any

import pytest

from dsv4.drafters.config import (
    OPTIONS,
    SELECTOR_OPTIONS,
    SIZES,
    YARN_KEYS,
    Yarn,
    check_taps,
    default_taps,
    draft_config,
)
from dsv4.drafters.rope import neox_table, turning_pair, yarn_divisors, yarn_gain
from tests.drafters.small import content
from tests.speculation.refusing import refuses

YARN = dict(
    rope_type="yarn",
    factor=32.0,
    original_max_position_embeddings=8192,
    beta_fast=32.0,
    beta_slow=1.0,
    rope_theta=1e7,
)


def read(family: str = "dflash", **changes: Any):  # type: ignore[no-untyped-def]
    return draft_config(content(family, **changes))


def test_each_family_is_known_by_its_architecture() -> None:
    assert [read(f).family for f in ("dflash", "dspark", "dflash2")] == [
        "dflash",
        "dspark",
        "dflash2",
    ]


def test_options_may_stand_at_the_top_level() -> None:
    found = read(
        "dspark",
        architectures=["Qwen3DSparkModel"],
        dflash_config=False,
        mask_token_id=5,
        target_layer_ids=[1, 3],
        markov_rank=8,
    )
    assert (found.mask_token_id, found.target_layer_ids, found.strategy_dspark) == (5, (1, 3), True)


@pytest.mark.parametrize(
    ("family", "changes", "code"),
    [
        ("dflash2", dict(dflash_config=False), "dflash2-config"),
        ("dflash", dict(hidden_size=None), "key-missing"),
        ("dflash", dict(intermediate_size=None), "key-missing"),
        ("dflash", dict(block_size=None), "draft-key-missing"),
        ("dflash", dict(own_mask_token_id=None), "draft-key-missing"),
        ("dflash2", dict(own_selector_rank=None), "draft-key-missing"),
        ("dflash2", dict(own_conv_group_size=None), "draft-key-missing"),
        ("dflash", dict(layer_types=None), "layer-types-missing"),
        ("dflash2", dict(sliding_window=None), "window-missing"),
        ("dflash", dict(rms_norm_eps=None), "eps-missing"),
        ("dflash", dict(rope_theta=None), "theta-missing"),
        ("dflash2", dict(rope_parameters=None), "rope-missing"),
        ("dflash2", dict(rope_parameters=YARN), "rope-type"),
        ("dflash", dict(rope_scaling=dict(type="linear", factor=2)), "rope-type"),
        ("dflash2", dict(is_causal=None), "causal"),
        ("dflash2", dict(is_causal=True), "causal"),
        ("dflash2", dict(layer_types=["sliding_attention", "full_attention"]), "not-sliding"),
        ("dflash2", dict(sliding_window=3), "block-window"),
        (
            "dflash",
            dict(rope_theta=None, rope_parameters={**YARN, "beta_slow": None}),
            "yarn-incomplete",
        ),
        ("dflash", dict(rope_theta=None, rope_parameters={**YARN, "mscale": 1.0}), "rope-type"),
        ("dflash2", dict(own_conv_group_size=48), "group-size"),
        ("dflash", dict(own_mask_token_id=97), "mask-id"),
        ("dflash", dict(num_key_value_heads=3), "head-groups"),
        ("dflash", dict(head_dim=15), "head-odd"),
        ("dflash", dict(own_target_layer_ids=[]), "taps-empty"),
        ("dflash", dict(own_target_layer_ids=[0, 4]), "tap-range"),
        ("dflash", dict(own_target_layer_ids=[-1, 2]), "tap-range"),
        ("dflash", dict(layer_types=["full_attention"]), "layer-types-length"),
        ("dflash2", dict(own_selector_top_k=33), "selector-k"),
        ("dspark", dict(own_markov_head_type="lstm"), "markov-type"),
        ("dflash", dict(is_neox_style=False), "rope-style"),
        ("dflash", dict(rope_is_neox_style=False), "rope-style"),
        ("dflash", dict(attention_bias=True), "attention-bias"),
        ("dflash", dict(own_block_size=8), "contradiction"),
        ("dflash", dict(rope_parameters=dict(rope_theta=5.0)), "contradiction"),
        ("dflash", dict(sample_from_anchor=True), "contradiction"),
        ("dspark", dict(sample_from_anchor=False), "contradiction"),
        ("dflash", dict(hidden_size=0), "value"),
        ("dflash", dict(block_size=4.5), "value"),
        ("dflash", dict(rms_norm_eps="small"), "value"),
        ("dflash", dict(layer_types=["full_attention", "linear"]), "value"),
        ("dspark", dict(architectures=["Gemma4DSparkModel"]), "architecture"),
        ("dflash", dict(architectures=["LlamaForCausalLM"]), "architecture"),
    ],
)
def test_a_configuration_that_breaks_a_rule_is_refused_by_its_code(
    family: str, changes: dict[str, Any], code: str
) -> None:
    with refuses(code):
        read(family, **changes)


@pytest.mark.parametrize("key", SIZES)
def test_no_size_may_be_missing(key: str) -> None:
    with refuses("key-missing"):
        read(**{key: None})


@pytest.mark.parametrize(("family", "keys"), [("dspark", OPTIONS), ("dflash2", OPTIONS)])
def test_no_option_of_a_drafter_may_be_missing(family: str, keys: tuple[str, ...]) -> None:
    more = SELECTOR_OPTIONS if family == "dflash2" else ()
    for key in (*keys, *more):
        with refuses("draft-key-missing"):
            read(family, **{key: None, f"own_{key}": None})


@pytest.mark.parametrize("key", YARN_KEYS)
def test_no_number_of_yarn_may_be_missing(key: str) -> None:
    with refuses("yarn-incomplete"):
        read("dspark", rope_theta=None, rope_parameters={**YARN, key: None})


def test_yarn_is_found_under_either_name_of_its_type() -> None:
    plain = dict(YARN)
    del plain["rope_type"], plain["rope_theta"]
    for kind in ("rope_type", "type"):
        assert read("dspark", rope_scaling={**plain, kind: "yarn"}).yarn is not None


def test_yarn_of_the_yardstick_drafter() -> None:
    yarn = Yarn(32.0, 8192, 32.0, 1.0)
    pairs = [turning_pair(t, yarn, 128, 1e7) for t in (32.0, 1.0)]
    assert pairs == pytest.approx([14.7205, 28.4819], abs=5e-5)
    assert yarn_gain(yarn) == pytest.approx(1.3465736, abs=5e-8)
    found = yarn_divisors(128, 1e7, yarn)
    assert (found[:15] == 1).all() and (found[29:] == 32).all()
    assert found[[15, 20, 25, 28]] == pytest.approx([1.0690423, 1.6326532, 3.4532373, 10.4347828])
    assert neox_table(3, 128, 1e7, yarn)[0, 0] == pytest.approx(1.3465736, abs=5e-8)


def test_taps_of_training_scripts_that_are_told_nothing() -> None:
    assert default_taps(5, 36) == (1, 9, 17, 25, 33)
    assert default_taps(1, 36) == (18,)


def test_taps_are_checked_against_the_target_at_hand() -> None:
    with refuses("tap-range"):
        check_taps(read(), 2)


def test_the_longest_context_is_the_window_of_layers_that_do_not_cut() -> None:
    assert read().context_limit is None
    slides = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=9)
    assert read("dflash", **slides).context_limit == 9
    assert read("dflash2").context_limit is None
