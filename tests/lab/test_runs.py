"""The model tables of the README, from documents of steps, generations and speculation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsv4.errors import Refusal
from lab.cli.main import main as lab
from lab.report import runs

ENV = {
    "device": "NVIDIA H200",
    "cuda": {"nvrtc": "13.0"},
    "gpu_settings": {"driver": "580.1"},
    "git": {"commit": "4f1c2ab99"},
    "packages": {"numpy": "2"},
}


def spec_document(**more: Any) -> dict[str, Any]:
    """What `spec --json` prints of two depths."""
    return {
        "schema": 1, "command": "spec", "model": "mint:flash,layers=20", "env": ENV, "stages": 1,
        "prompt": [3] * 17, "tokens": [5] * 100, "plain_step_s": 0.02, "identity": True,
        "depths": [
            {"depth": 1, "rounds": 100, "tokens_per_round": 1.0, "time_s": 2.0, "round_s": 0.02},
            {"depth": 2, "rounds": 56, "tokens_per_round": 1.8, "time_s": 1.25, "round_s": None},
        ],
        "cost_of_t": [
            {"rows": 1, "time_s": 0.02, "relative": 1.0},
            {"rows": 2, "time_s": 0.022, "relative": 1.1},
        ],
        "cost_fit": [0.9, 0.1], "rounds": [{"start": 0}], **more,
    }  # fmt: skip


def test_speculation_shows_rounds_and_what_rows_cost() -> None:
    text = runs.tables([runs.shortened(spec_document())])
    assert text.startswith("**NVIDIA H200** (driver 580.1, nvrtc 13.0, commit 4f1c2ab):")
    assert "one stage, 100 tokens after 17, the same tokens as plain decoding" in text
    assert "| 1 | 100 | 1.00 | 20.00 ms | 1.00 | 50 | 20.00 ms |" in text
    assert "| 2 | 56 | 1.80 | 22.00 ms | 1.10 | 82 | - |" in text


def test_other_tokens_are_shouted() -> None:
    assert "OTHER TOKENS" in runs.tables([runs.shortened(spec_document(identity=False))])


def test_documents_are_shortened_to_what_the_tables_read(tmp_path: Path) -> None:
    short = runs.shortened(spec_document())
    assert (short["prompt"], short["tokens"]) == (17, 100)
    assert "rounds" not in short and "packages" not in short["env"]
    with pytest.raises(Refusal, match="a document of gate"):
        runs.shortened({"command": "gate"})


def test_a_real_step_and_generation_make_rows(tmp_path: Path) -> None:
    made = {}
    for command in (["step", "mint:tiny"], ["generate", "mint:tiny", "--ids", "1,2", "-n", "2"]):
        done = CliRunner().invoke(lab, [*command, "--backend", "host", "--json"])
        assert done.exit_code == 0, done.output
        (tmp_path / f"{command[0]}.json").write_text(done.stdout)
    arguments = [*map(str, sorted(tmp_path.glob("*.json"))), str(tmp_path / "runs")]
    assert CliRunner().invoke(runs.main, arguments).exit_code == 0
    text = runs.tables(runs.read_runs(tmp_path / "runs"))
    made = [line for line in text.splitlines() if line.startswith("| `mint:tiny`")]
    assert len(made) == 2 and "launches" in made[0]
    assert json.loads((tmp_path / "runs" / "step.json").read_text())["model"] == "mint:tiny"


def test_no_run_says_so() -> None:
    assert "No run" in runs.tables([])


def test_steps_of_two_cards_tell_what_cards_exchange_and_streams_their_tokens() -> None:
    step = {
        "position": 200, "rows": 1, "launches": 500, "size_bytes": 10**10, "step_s": 1.0,
        "graph_s": 4e-3, "joins": 0, "join_s": 0.0, "boundary_s": 2e-5, "boundary_bytes": 65536,
    }  # fmt: skip
    tensor = {**step, "graph_s": 2e-3, "joins": 80, "join_s": 5e-6, "boundary_bytes": 0}
    pair = {"streams": 2, "step_s": 5e-3, "alone_s": 4e-3, "rows_per_s": 400.0}
    document = {
        "schema": 1, "command": "step", "model": "mint:flash", "env": ENV, "cards": 2,
        "steps": [step, tensor], "streams": [pair],
    }  # fmt: skip
    text = runs.tables([runs.shortened(document)])
    assert "| 2 | 200 | 1 | 500 | 10.00 | graph | 4.00 ms | 2500 | 250 | 20.0 us: 0.5% |" in text
    assert "| 2.00 ms | 5000 | 500 | 80 joins of 5.0 us: 20.0% |" in text
    assert "| `mint:flash` | 2 | 2 | 4.00 ms | 250 | 5.00 ms | 400 |" in text
    assert "two stages" not in text
    told = runs.tables([runs.shortened(spec_document(stages=2, cards=2))])
    assert "2 stages on 2 cards, 100 tokens" in told
