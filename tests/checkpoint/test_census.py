"""Expected tensors, the totals of published releases, stored names, and what is no difference."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import oracle.census
import oracle.config
from dsv4.checkpoint.census import Census, open_artifact, take_census
from dsv4.checkpoint.config import read_config
from dsv4.checkpoint.expected import Entry, Layout, expected_tensors
from dsv4.checkpoint.formats import WEIGHTS, is_redundant_copy, normalise
from dsv4.checkpoint.headers import StoredTensor
from dsv4.checkpoint.mint import plan_mint
from dsv4.checkpoint.published import LAYOUTS, published_config
from dsv4.errors import Refusal
from tests.checkpoint.conftest import Minted

ROOT = Path(__file__).parents[2]
TINY_S = ROOT / "tests" / "data" / "tiny-s"
PRUNED = "deepseek-v4-flash-0731-160experts.json.gz"


# Size, layout, experts; tensors and bytes of the release.
@pytest.mark.parametrize(
    ("size", "layout", "experts", "tensors", "size_bytes"),
    [
        ("flash", "nextn", None, 69_187, 159_609_485_896),
        ("flash", "0731", None, 72_317, 166_878_536_440),
        ("flash", "official", None, 67_612, 156_015_698_140),
        ("flash", "nvfp4", None, 135_235, 168_266_793_544),
        ("flash", "0731-nvfp4", None, 138_365, 175_535_844_088),
        ("flash", "0731", 160, 45_821, 107_803_320_952),
        ("pro", "nextn", None, 145_116, 864_704_792_696),
        ("tiny", "0731", None, 662, 12_272_508),
        ("tiny", "nextn", None, 508, 9_851_624),
        ("tiny", "0731-nvfp4", None, 902, 12_396_348),
        ("tiny", "nvfp4", None, 748, 9_975_464),
    ],
)
def test_totals_are_those_of_the_releases(
    size: str, layout: str, experts: int | None, tensors: int, size_bytes: int
) -> None:
    plan = plan_mint(size, layout, experts=experts)
    assert (len(plan.entries), plan.size_bytes) == (tensors, size_bytes)


@functools.cache
def census_of(size: str, layout: str) -> Census:
    plan = plan_mint(size, layout)
    return take_census(plan.config, stored_like(plan.entries))


def stored_like(entries: Mapping[str, Entry]) -> dict[str, StoredTensor]:
    """Headers that hold exactly these entries."""
    return {
        name: StoredTensor(name, e.dtype, e.shape, Path("shard"), 0, e.size_bytes)
        for name, e in entries.items()
    }


def test_blocks_of_the_published_model_weigh_what_is_documented() -> None:
    found = census_of("flash", "0731")
    blocks = found.by_block()
    assert blocks["layers.0."] == 3_566_148_952  # window only, hash-routed
    assert blocks["layers.4."] == 3_589_851_224  # fine
    assert blocks["layers.3."] == 3_568_596_312  # coarse
    stages = [blocks[f"mtp.{k}."] for k in range(3)]
    assert stages == [3_610_287_448, 3_559_944_536, 3_692_606_316]
    counts = [sum(n.startswith(b) for n in found.entries) for b in ("layers.0.", "layers.2.")]
    assert counts == [1565, 1576]
    assert census_of("flash", "nextn").by_block()["mtp.0."] == 3_593_787_756


def test_components_of_the_published_model_weigh_what_is_documented() -> None:
    trunk = census_of("flash", "official").by_component(tail=False)
    assert trunk["routed experts"] == (66_048, 43 * 3_422_552_064)
    assert trunk["shared experts"][1] == 1_082_196_480
    assert trunk["compressor"][1] == 525_722_624
    assert trunk["hyper-connections"][1] == 135_537_756
    assert trunk["head"] == trunk["embedding"] == (1, 1_059_061_760)
    nvfp4 = census_of("flash", "nvfp4").by_component(tail=False)
    assert nvfp4["routed experts"] == (132_096, 43 * 3_623_884_800)


def test_stored_types_of_the_published_model_weigh_what_is_documented() -> None:
    gigabytes = {t: size / 1e9 for t, (_, size) in census_of("flash", "0731").by_dtype().items()}
    documented = dict(I8=148.18, F8_E8M0=9.26, F8_E4M3=6.30, BF16=2.97, F32=0.151, I64=0.0186)
    assert gigabytes == pytest.approx(documented, rel=3e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", ["tiny", "small", "flash"])
def test_the_oracle_expects_the_same_tensors(size: str, layout: str) -> None:
    plan = plan_mint(size, layout, experts=10)
    config = oracle.config.read_config(plan.config_content)
    theirs = oracle.census.census(config, plan.entries)
    assert {n: (e.dtype, e.shape) for n, e in plan.entries.items()} == dict(theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_made_checkpoint_passes(layout: str, minted: Minted) -> None:
    found = open_artifact(minted(layout)).census
    plan = plan_mint("tiny", layout)
    assert (found.config, found.layout) == (plan.config, plan.layout)
    assert (dict(found.entries), found.ignored) == (dict(plan.entries), ())


def test_the_recorded_model_passes() -> None:
    artifact = open_artifact(TINY_S)
    assert (artifact.census.layout.lineage, artifact.config.stages) == ("dspark", 2)
    index = json.loads((TINY_S / "model.safetensors.index.json").read_text())
    assert artifact.census.size_bytes == index["metadata"]["total_size"]
    assert artifact.census.layout.precision == "FP8 + MXFP4"


def test_the_headers_of_a_public_release_pass() -> None:
    folder = Path(os.environ.get("DSV4_CENSUS", ROOT.parent / "shared" / "census"))
    if not (folder / PRUNED).is_file():
        pytest.skip(f"no {PRUNED} in {folder}; set DSV4_CENSUS to its folder")
    artifact = open_artifact(folder / PRUNED)
    found = artifact.census
    assert (len(found.entries), found.size_bytes) == (45_821, 107_803_320_952)
    assert (len(artifact.tensors.files), found.layout) == (48, Layout("dspark"))
    plan = plan_mint("flash", "0731", experts=160)
    assert (plan.config, dict(plan.entries)) == (found.config, dict(found.entries))


def test_precision_says_which_experts_are_nvfp4() -> None:
    assert Layout("nextn", frozenset({"layers.0."})).precision == "FP8 + NVFP4, tail MXFP4"
    assert Layout("none", frozenset({"layers.0."})).precision == "FP8 + NVFP4"
    assert Layout("dspark", frozenset({"layers.0.", "mtp.0."})).precision == "FP8 + NVFP4"


def test_a_drafter_whose_experts_were_converted_too_passes() -> None:
    plan = plan_mint("tiny", "0731")
    layout = Layout("dspark", frozenset(plan.config.blocks))
    entries = expected_tensors(plan.config, layout)
    found = take_census(plan.config, stored_like(entries))
    assert found.layout == layout
    # Six more tensors for each expert.
    assert len(entries) == len(plan.entries) + 6 * 8 * len(plan.config.blocks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_and_their_scales_are_found_together(layout: str) -> None:
    entries = plan_mint("tiny", layout).entries
    scaled: set[str] = set()
    for name, entry in entries.items():
        if name.endswith(".weight") and entry.dtype in WEIGHTS:
            parts = WEIGHTS[entry.dtype].names(name.removesuffix(".weight"))
            assert all(part in entries for part in parts), name
            scaled.update(parts)
    rest = {n for n, e in entries.items() if e.dtype not in ("BF16", "F32", "I64")} - scaled
    assert rest == set()
    assert {n for n in entries if n.endswith(("scale", "scale_2"))} - scaled == {
        n for n in entries if n.endswith((".input_scale", "attn_scale", "ffn_scale", "head_scale"))
    }


@pytest.mark.parametrize(
    ("stored", "published"),
    [
        ("model.embed_tokens.weight", "embed.weight"),
        ("lm_head.weight", "head.weight"),
        ("model.norm.weight", "norm.weight"),
        ("model.layers.3.self_attn.q_a_proj.weight", "layers.3.attn.wq_a.weight"),
        ("model.layers.3.self_attn.q_b_proj.weight_scale_inv", "layers.3.attn.wq_b.scale"),
        ("model.layers.3.self_attn.q_a_layernorm.weight", "layers.3.attn.q_norm.weight"),
        ("layers.3.self_attn.kv_a_layernorm.weight", "layers.3.attn.kv_norm.weight"),
        ("layers.3.input_layernorm.weight", "layers.3.attn_norm.weight"),
        ("layers.3.post_attention_layernorm.weight", "layers.3.ffn_norm.weight"),
        ("layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"),
        ("layers.3.mlp.experts.9.gate_proj.weight", "layers.3.ffn.experts.9.w1.weight"),
        ("layers.3.mlp.shared_experts.up_proj.scale", "layers.3.ffn.shared_experts.w3.scale"),
        ("layers.3.mlp.shared_experts.down_proj.scale", "layers.3.ffn.shared_experts.w2.scale"),
        ("layers.3.attn.compressor.wkv.weight", "layers.3.attn.compressor.wkv.weight"),
        ("hc_head_fn", "hc_head_fn"),
    ],
)
def test_an_alias_is_read_as_the_published_name(stored: str, published: str) -> None:
    assert normalise(stored) == published


def test_copies_of_embedding_and_head_are_told_from_real_tensors_of_the_tail() -> None:
    copies = ["mtp.0.embed.weight", "mtp.0.emb.tok_emb.weight", "mtp.0.head.weight",
              "mtp.0.shared_head.head.weight"]  # fmt: skip
    assert all(map(is_redundant_copy, copies))
    real = ["mtp.0.hc_head_fn", "mtp.2.markov_head.markov_w1.weight", "layers.0.embed.weight",
            "mtp.2.confidence_head.proj.weight", "embed.weight", "head.weight"]  # fmt: skip
    assert not any(map(is_redundant_copy, real))


def test_the_same_rules_hold_for_the_next_token_block() -> None:
    plan = plan_mint("tiny", "nextn")
    stored = stored_like(plan.entries)
    del stored["mtp.0.enorm.weight"]
    with pytest.raises(Refusal, match=r"missing-tensor(.|\n)*mtp.0.enorm.weight"):
        take_census(plan.config, stored)
    content = published_config("tiny", "nextn")
    content["compress_ratios"] = [*content["compress_ratios"], 0]
    two = {n.replace("mtp.0.", "mtp.1."): t for n, t in stored_like(plan.entries).items()}
    with pytest.raises(Refusal, match="rule stage-count"):
        take_census(read_config(content), {**stored_like(plan.entries), **two})
