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
    again = run("draft", *pair, "--ids", "3,1,4", "-n", 5, "--backend", "host", "--json", "--warm",
                "--policy", "ladder", "--prec", "bf16", "--temperature", 0.9, "--no-eos",
                "--top-k", 20, "--seed", 7)  # fmt: skip
    assert json.loads(again[1])["tokens"] == found["tokens"]


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


def test_a_v4_model_is_a_target_too(tmp_path: Path) -> None:
    fits = dict(hidden_size=128, vocab_size=256)
    drafter = write_drafter(tmp_path / "drafter", "dspark", **fits)
    code, out, err = run("draft", golden_folder("tiny-s"), drafter, "--ids", "3,1,4", "-n", 6,
                         "--check", "--backend", "host", "--json")  # fmt: skip
    assert code == ExitCode.OK, err
    found = json.loads(out)
    assert found["target"] == dict(kind="deepseek_v4", hidden=128, layers=4)
    assert found["equals_plain"] is True


@pytest.mark.parametrize("target", ["mint:qwen3-tiny", "mint:tiny,layers=2"])
@pytest.mark.parametrize("drafter", ["mint:dflash,block=4", "mint:dspark", "mint:dflash2,layers=1"])
def test_both_models_may_be_made(target: str, drafter: str) -> None:
    code, out, err = run("draft", target, drafter, "--ids", "3,1,4", "-n", 4, "--check",
                         "--backend", "host", "--json")  # fmt: skip
    assert code == ExitCode.OK, err
    found = json.loads(out)
    assert found["equals_plain"] is True and len(found["tokens"]) == 4
    assert found["phase_s"]["verify"] > 0


def test_an_embedding_may_stay_on_the_host_but_not_a_v4_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSV4_SPEC_HOST_EMBD", "1")
    words = ("mint:dspark", "--ids", "3,1,4", "-n", 4, "--backend", "host")
    assert run("draft", "mint:qwen3-tiny", *words, "--check")[0] == ExitCode.OK
    code, _, err = run("draft", "mint:tiny,layers=2", *words)
    assert code == ExitCode.USAGE
    assert "DSV4_SPEC_HOST_EMBD" in err


def test_a_made_drafter_knows_its_share_of_a_made_language() -> None:
    pair = ("mint:qwen3-tiny,agree=1,seed=3", "mint:dspark,agree=0.8,seed=3,block=4")
    code, out, err = run("draft", *pair, "--ids", "3,1,4", "-n", 24, "--check",
                         "--backend", "host", "--json")  # fmt: skip
    assert code == ExitCode.OK, err
    found = json.loads(out)
    assert found["equals_plain"] is True
    assert len(set(found["tokens"])) == 24
    assert 2 < found["tokens_per_round"] < 5


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        (("mint:qwen3-tiny", "mint:eagle"), "dflash2"),
        (("mint:qwen3-tiny", "mint:dflash,agree=1"), "dspark drafters know"),
        (("mint:qwen3-tiny,agree=2", "mint:dspark"), "agree=SHARE"),
        (("mint:qwen3-tiny,layout=0731", "mint:dspark"), "agree=SHARE"),
        (("mint:qwen3-tiny", "mint:dspark,experts=2"), "block=N"),
        (("mint:qwen3-tiny", "nowhere"), "nowhere"),
        (("nowhere", "mint:dspark"), "nowhere"),
    ],
)
def test_models_that_cannot_be_made_or_found_are_refused(pair: tuple[str, str], word: str) -> None:
    code, _, err = run("draft", *pair, "--ids", "3", "-n", 2, "--backend", "host")
    assert code == ExitCode.USAGE
    assert word in err


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
