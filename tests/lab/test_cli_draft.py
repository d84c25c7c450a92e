"""The commands that know drafters: draft, census and model-diff."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.cli.exit_codes import ExitCode
from lab.cli.main import main
from tests.drafters.pairs import write_drafter, write_target
from tests.goldens import golden_folder


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(w) for w in words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    target = write_target(tmp_path / "target", "dense")
    return target, write_drafter(tmp_path / "drafter", "dspark")


def test_a_greedy_run_is_checked_against_the_target_alone(pair: tuple[Path, Path]) -> None:
    code, out, _ = run("draft", *pair, "--ids", "3,1,4", "-n", 6, "--check", "--backend", "host")
    assert code == ExitCode.OK
    assert "tokens of the target alone: SAME" in out
    assert "confidence-slot, tau 0.5" in out


def test_a_run_as_a_document(pair: tuple[Path, Path]) -> None:
    code, out, _ = run("draft", *pair, "--ids", "3,1,4", "-n", 5, "--backend", "host", "--json",
                       "--policy", "ladder", "--prec", "bf16", "--temperature", 0.9, "--no-eos",
                       "--top-k", 20, "--seed", 7)  # fmt: skip
    assert code == ExitCode.OK
    found = json.loads(out)
    assert len(found["tokens"]) == 5
    assert found["drafter"]["precision"] == "bf16"
    assert found["accepted"] == sum(r["accepted"] for r in found["rounds"])
    assert set(found["phase_s"]) == {"draft", "snapshot", "verify", "rollback", "ingest"}
    assert found["device_events"] == 1 + len(found["rounds"]) * 5


@pytest.mark.parametrize(
    "words",
    [
        ("--ids", "3,x"),
        ("--ids", "3,99"),
        ("--ids", "3", "--policy", "confidence", "--tau", "1.5"),
        ("--ids", "3", "--check", "--temperature", "1"),
        ("--ids", ""),
    ],
)
def test_bad_input_is_a_usage_error(words: tuple[str, ...], pair: tuple[Path, Path]) -> None:
    assert run("draft", *pair, *words, "-n", 2, "--backend", "host")[0] == ExitCode.USAGE


def test_a_target_is_no_drafter(pair: tuple[Path, Path]) -> None:
    code, _, err = run("draft", pair[0], pair[0], "--ids", "3", "--backend", "host")
    assert code == ExitCode.USAGE
    assert "[architecture]" in err


def test_census_tells_what_a_drafter_is(pair: tuple[Path, Path]) -> None:
    code, out, _ = run("census", pair[1])
    assert code == ExitCode.OK
    assert "harvest         dspark (dflash2 0, dspark 1, switch unset)" in out
    found = json.loads(run("census", pair[1], "--json")[1])
    assert (found["family"], found["markov_rank"]) == ("dspark", 32)


def test_census_refuses_a_broken_drafter_by_its_code(pair: tuple[Path, Path]) -> None:
    config = pair[1] / "config.json"
    config.write_text(config.read_text().replace('"markov_rank": 32', '"markov_rank": 16'))
    code, _, err = run("census", pair[1])
    assert code == ExitCode.USAGE
    assert "[contradiction]" in err


@pytest.mark.parametrize("subject", ["oracle", "engine"])
def test_model_diff_compares_recorded_drafters(subject: str) -> None:
    folder = golden_folder("dspark-qwen3")
    code, out, _ = run("model-diff", folder, "--subject", subject, "--backend", "host", "--json")
    assert code == ExitCode.OK
    found = json.loads(out)
    assert found["summary"] == {"pass": 45, "fail": 0}
    assert found["tokens"]["disagree_above_margin"] == 0


def test_model_diff_of_a_drafter_has_no_laws() -> None:
    folder = golden_folder("dspark-qwen3")
    assert run("model-diff", folder, "--law", "ref")[0] == ExitCode.USAGE
