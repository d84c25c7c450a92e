"""The trained example: what lies there, what it has learned, and that drafts change no byte."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.config import load_config
from lab.cli.main import main
from lab.demo import EXAMPLE
from tools.train.corpus import check_recorded, is_held_out, read_corpus, read_record
from tools.train.settings import Settings, config_content

LARGEST_BYTES = 12_000_000
RECORDED = read_record(EXAMPLE / "corpus.json")
RESULT = json.loads((EXAMPLE / "result.json").read_text(encoding="utf-8"))


def held_out(name: str) -> Path:
    """A held-out file of the running interpreter, if it is the recorded one."""
    file = Path(sysconfig.get_path("stdlib")) / name
    found = hashlib.sha256()
    content = file.read_bytes() if file.is_file() else b""
    for piece in (name.encode(), content):
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    if found.hexdigest()[:16] != RECORDED["files"][name]:
        pytest.skip(f"{name} was held out as {RECORDED['release']} has it; this is another one")
    return file


def told(capsys: pytest.CaptureFixture[str], *args: Any, code: int = 0) -> dict[str, Any]:
    """The document of a command."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, args), "--json"])
    captured = capsys.readouterr()
    assert int(left.value.code or 0) == code, captured.err
    found = json.loads(captured.out)
    assert isinstance(found, dict)
    return found


def test_the_folder_is_small_and_says_what_it_is() -> None:
    files = {f.name: f.stat().st_size for f in EXAMPLE.iterdir()}
    assert sum(files.values()) <= LARGEST_BYTES
    assert RESULT["sizes_bytes"]["0731"] == sum(
        files[n] for n in ("config.json", "model.safetensors", "tokenizer_config.json")
    )
    assert max(RESULT["sizes_bytes"].values()) <= LARGEST_BYTES
    licence = (EXAMPLE / "LICENSE").read_text(encoding="utf-8")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence
    assert RECORDED["release"] in licence and RECORDED["licence"] == "PSF-2.0"
    assert RECORDED["release"] in (EXAMPLE / "README.md").read_text(encoding="utf-8")


def test_every_structure_of_the_published_model_is_there() -> None:
    config = load_config(EXAMPLE)
    content = json.loads((EXAMPLE / "config.json").read_text(encoding="utf-8"))
    assert content == config_content("stdlib")
    ratios = content["compress_ratios"][: config.n_layers]
    assert {0, 4, 128} == set(ratios) and 0 < content["num_hash_layers"] < config.n_layers
    assert content["dspark_block_size"] == 5 and content["n_shared_experts"] == 1
    assert content["rope_scaling"]["type"] == "yarn" and content["hc_mult"] == 4
    assert open_artifact(EXAMPLE).census.layout.lineage == "dspark"


def test_the_corpus_is_the_recorded_one_and_its_held_out_modules_follow_the_rule() -> None:
    assert {k: RECORDED[k] for k in RESULT["corpus"]} == RESULT["corpus"]
    modules = {name.split("/")[0].removesuffix(".py") for name in RECORDED["files"]}
    kept = set(RECORDED["held_out"]["modules"])
    assert kept == {m for m in modules if is_held_out(m)}
    assert {"argparse", "collections", "ipaddress", "subprocess", "tempfile"} <= kept
    corpus = read_corpus()
    if corpus.release != RECORDED["release"]:
        pytest.skip(f"the corpus is of {RECORDED['release']}, this is {corpus.release}")
    check_recorded(corpus, RECORDED)


def test_the_plain_command_trains_as_this_model_was_trained() -> None:
    usual, used = Settings(), RESULT["settings"]
    free = {"steps", "draft_steps", "minutes", "draft_minutes"}
    assert {k: getattr(usual, k) for k in used if k not in free} == {
        k: v for k, v in used.items() if k not in free
    }
    assert {"trunk": usual.steps, "drafter": usual.draft_steps} == RESULT["steps"]


def test_it_has_learned_python_and_drafts_change_no_byte(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = told(
        capsys, "eval", EXAMPLE, "--text", held_out("timeit.py"), "--limit", 192, "--context", 96,
        "--stride", 96, "--rounds", 5, "--prompts", 2, "--length", 8, "--backend", "host",
        "--no-record",
    )  # fmt: skip
    assert found["bits_per_byte"] < 2.5, (
        "gzip takes 2.75 of the whole file; random weights take eight"
    )
    assert found["drafter"]["window_off"]["tokens_per_round"] > 1.5
    written = found["written"]
    assert (written["prompts"], written["differing"]) == (2, 0)
    assert written["tokens_per_round"] > 1.5


def test_the_demo_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "demo", "-n", 12, "--backend", "host")
    assert found["identity"] is True and found["model"] == str(EXAMPLE)
    assert found["tokens_per_round"] > 1.5 and found["text"].strip()
    assert any(r["accepted"] for r in found["rounds"])


@pytest.mark.stress
def test_drafts_change_no_byte_behind_fifty_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    files = [held_out(f"{n}.py") for n in ("ipaddress", "subprocess", "tempfile", "timeit")]
    found = told(
        capsys, "eval", EXAMPLE, "--text", *files, "--limit", 1024, "--context", 64, "--rounds", 0,
        "--prompts", 50, "--length", 16, "--backend", "host", "--no-record",
    )  # fmt: skip
    written = found["written"]
    assert (written["prompts"], written["differing"]) == (50, 0)
    assert written["tokens_per_round"] > 2.0


@pytest.mark.stress
@pytest.mark.parametrize("arm", ["dense_arm=bf16", "dense_input=fp8", "dots_arm=f32"])
def test_every_arm_says_nearly_as_much(capsys: pytest.CaptureFixture[str], arm: str) -> None:
    files = [held_out(f"{n}.py") for n in ("ipaddress", "timeit")]
    found = told(
        capsys, "eval", EXAMPLE, "--text", *files, "--limit", 192, "--rounds", 0, "--by", "steps",
        "--against", arm, "--backend", "host", "--no-record",
    )  # fmt: skip
    assert abs(found["against"]["relative"]) <= 0.005
