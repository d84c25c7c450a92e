"""Headers that break one rule of the census each, and headers that only look as if they did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.mint import plan_mint
from dsv4.checkpoint.published import published_config
from dsv4.checkpoint.reader import Checkpoint
from dsv4.errors import Refusal

Headers = dict[str, dict[str, Any]]
Change = Callable[[dict[str, Any], Headers], Any]


def rename(old: str, new: str) -> Change:
    return lambda config, headers: headers.update({new: headers.pop(old)})


def without(*names: str) -> Change:
    return lambda config, headers: [headers.pop(name) for name in names]


def tensor(name: str, dtype: str, shape: list[int]) -> Change:
    return lambda config, headers: headers.update({name: {"dtype": dtype, "shape": shape}})


def both(first: Change, second: Change) -> Change:
    return lambda config, headers: (first(config, headers), second(config, headers))


def configured(**values: Any) -> Change:
    return lambda config, headers: config.update(values)


def swap(name: str) -> Change:
    """A matrix stored as its transpose."""
    return lambda config, headers: headers[name]["shape"].reverse()


def nvfp4_marker(config: dict[str, Any], headers: Headers) -> None:
    """One expert of one layer half converted."""
    headers["layers.2.ffn.experts.0.w1.weight_scale_2"] = {"dtype": "F32", "shape": []}


WQ_A, EXPERT = "layers.0.attn.wq_a", "layers.3.ffn.experts.5.w2"
# Changes to headers and configuration of tiny 0731; the rule, and a word of the message.
BROKEN: dict[str, tuple[str, str, Change]] = {
    "a matrix is missing": ("missing-tensor", WQ_A, without(f"{WQ_A}.weight")),
    "a scale is missing": ("missing-tensor", f"{EXPERT}.scale", without(f"{EXPERT}.scale")),
    "a hash table is missing": (
        "missing-tensor", "layers.1.ffn.gate.tid2eid", without("layers.1.ffn.gate.tid2eid")),
    "a misspelt tensor": ("missing-tensor", "extra-tensor", rename("norm.weight", "norms.weight")),
    "a bias in a hash layer": (
        "extra-tensor", "layers.0.ffn.gate.bias", tensor("layers.0.ffn.gate.bias", "F32", [8])),
    "a layer too many": (
        "extra-tensor", "layers.5.attn", tensor("layers.5.attn_norm.weight", "BF16", [256])),
    "an expert too many": (
        "extra-tensor", "experts.8.w1", tensor("layers.0.ffn.experts.8.w1.weight", "I8", [2, 2])),
    "signed codes called unsigned": (
        "wrong-dtype", EXPERT, tensor(f"{EXPERT}.weight", "U8", [256, 64])),
    "a float scale": ("wrong-dtype", WQ_A, tensor(f"{WQ_A}.scale", "F32", [1, 2])),
    "float norms": ("wrong-dtype", "norm", tensor("layers.0.attn_norm.weight", "F32", [256])),
    "a transposed matrix": ("wrong-shape", WQ_A, swap(f"{WQ_A}.weight")),
    "a transposed scale": ("wrong-shape", EXPERT, swap(f"{EXPERT}.scale")),
    "a pair of wide projections": (
        "wrong-shape", "layers.0.attn.wo_a", swap("layers.0.attn.wo_a.weight")),
    "another number of experts": ("wrong-shape", "[9, 256]", configured(n_routed_experts=9)),
    "fewer experts": ("wrong-shape", "gate", configured(n_routed_experts=7)),
    "another ratio": (
        "wrong-shape", "ape", configured(compress_ratios=[0, 4, 16, 4, 8, 0, 0, 0])),
    "another window class": (
        "missing-tensor", "compressor", configured(compress_ratios=[4, 4, 8, 4, 8, 0, 0, 0])),
    "fewer taps": ("wrong-shape", "main_proj", configured(dspark_target_layer_ids=[3, 4])),
    "half converted experts": ("wrong-dtype", "layers.2.ffn.experts.0.w1", nvfp4_marker),
    "a missing stage": (
        "stage-count", "mtp.1",
        lambda config, headers: [headers.pop(n) for n in list(headers) if n.startswith("mtp.2.")]),
    "two stages configured": (
        "stage-count", "2 stages", configured(compress_ratios=[0, 4, 8, 4, 8, 0, 0])),
    "no tail stored": (
        "stage-count", "no mtp",
        lambda config, headers: [headers.pop(n) for n in list(headers) if n.startswith("mtp.")]),
    "a tail without its marker": (
        "lineage", "neither", without("mtp.0.main_proj.weight")),
    "both tails": (
        "lineage", "e_proj", tensor("mtp.0.e_proj.weight", "F8_E4M3", [256, 256])),
    "a drafter without its keys": (
        "lineage", "dspark_block_size",
        lambda config, headers: [config.pop(k) for k in list(config) if k.startswith("dspark")]),
    "an alias beside the name": (
        "duplicate-tensor", "model.norm.weight",
        both(tensor("model.norm.weight", "BF16", [256]), configured())),
    "an unknown type": ("unknown-dtype", "F8_E5M2", tensor("norm.weight", "F8_E5M2", [256])),
}  # fmt: skip


def headers_file(folder: Path, change: Change) -> Path:
    """A file of headers of tiny 0731 after a change; lengths follow types and shapes."""
    config = published_config("tiny", "0731")
    entries = plan_mint("tiny", "0731").entries
    headers = {n: {"dtype": e.dtype, "shape": list(e.shape)} for n, e in entries.items()}
    change(config, headers)
    offset = 0
    widths = {"I64": 8, "F32": 4, "BF16": 2}
    for entry in headers.values():
        size = widths.get(entry["dtype"], 1)
        for length in entry["shape"]:
            size *= length
        entry["data_offsets"] = [offset, offset + size]
        offset += size
    file = folder / "headers.json"
    file.write_text(json.dumps({"config": config, "shards": {"one.safetensors": headers}}))
    return file


def test_headers_that_nobody_changed_pass(tmp_path: Path) -> None:
    assert len(open_artifact(headers_file(tmp_path, configured())).census.entries) == 662


@pytest.mark.parametrize("name", BROKEN)
def test_broken_headers_are_refused_by_the_rules_name(name: str, tmp_path: Path) -> None:
    rule, word, change = BROKEN[name]
    with pytest.raises(Refusal, match=f"^rule {rule}:") as refused:
        open_artifact(headers_file(tmp_path, change))
    message = str(refused.value)
    assert word in message
    assert "headers.json" in message or "one.safetensors" in message


def test_a_refusal_counts_what_is_alike_and_names_other_broken_rules(tmp_path: Path) -> None:
    names = [f"layers.0.ffn.experts.{e}.w1.scale" for e in range(8)]
    change = both(without(*names), tensor("stray", "F32", [1]))
    with pytest.raises(Refusal, match=r"8 such.*\n.*\n.*also broken: extra-tensor"):
        open_artifact(headers_file(tmp_path, change))


def test_a_checkpoint_under_aliases_is_the_same_checkpoint(tmp_path: Path) -> None:
    aliases = {"attn": "self_attn", "ffn": "mlp", "scale": "weight_scale_inv", "w1": "gate_proj"}

    def under_aliases(config: dict[str, Any], headers: Headers) -> None:
        for name in list(headers):
            parts = [aliases.get(part, part) for part in name.split(".")]
            headers["model." + ".".join(parts)] = headers.pop(name)

    found = open_artifact(headers_file(tmp_path, under_aliases)).census
    assert dict(found.entries) == dict(plan_mint("tiny", "0731").entries)


def test_copies_beside_the_model_are_listed_and_not_counted(tmp_path: Path) -> None:
    change = both(
        tensor("mtp.0.embed.weight", "BF16", [512, 256]),
        tensor("mtp.0.shared_head.head.weight", "BF16", [512, 256]),
    )
    found = open_artifact(headers_file(tmp_path, change)).census
    assert found.ignored == ("mtp.0.embed.weight", "mtp.0.shared_head.head.weight")
    assert found.size_bytes == 12_272_508


def test_names_are_left_alone_unless_asked(tmp_path: Path) -> None:
    change = rename("norm.weight", "model.norm.weight")
    stored = Checkpoint.open(headers_file(tmp_path, change))
    assert "model.norm.weight" in stored and "norm.weight" not in stored
