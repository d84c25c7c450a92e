"""eval: its document, its record and picture, second models, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dsv4.engine import speculate as loop_module
from lab.cli.main import main
from tests.goldens import golden_folder

TINY = golden_folder("tiny-s")
WORDS = b"def area(width, height):\n    return width * height\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file to score."""
    file = tmp_path / "area.py"
    file.write_bytes(WORDS)
    return file


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, args)))
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_eval_tells_bits_acceptance_and_calibration_and_keeps_them(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, text: Path, tmp_path: Path
) -> None:
    picture, store = tmp_path / "reliability.svg", tmp_path / "lab.db"
    drawing = importlib.util.find_spec("matplotlib") is not None
    code, out, err = run(
        capsys, "eval", byte_folder, "--text", text, "--context", 40, "--rounds", 3, "--every", 8,
        "--against", "dots_arm=f64", "--backend", "host", "--store", store, "--json",
        *(("--picture", picture) if drawing else ()),
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["size_bytes"] == len(WORDS) == found["positions"]
    assert found["bits_per_byte"] == found["files"][0]["bits_per_byte"] > 0
    assert found["packed"]["xz_bytes"] == found["files"][0]["xz_bytes"] > len(WORDS)
    assert found["windows"]["stride"] == 20 and "scored once" in found["windows"]["rule"]
    second = found["against"]
    assert second["switches"] == {"dots_arm": "f64"} and second["positions"] == len(WORDS)
    assert second["same"] / len(WORDS) == second["top1_agreement"]
    assert abs(second["difference"]) < 1e-3
    drafter = found["drafter"]
    assert drafter["block"] == 3 and drafter["rounds"] == 3
    assert drafter["window_off"]["rows_per_round"] == 4.0
    assert 1 <= drafter["window_slot"]["tokens_per_round"]
    assert drafter["window_slot"]["tokens_per_round"] <= drafter["window_off"]["tokens_per_round"]
    assert drafter["window_off"]["acceptance"][0][1] == 3
    told = drafter["calibration"]
    judged = sum(n for _, n in drafter["window_off"]["acceptance"])
    assert told["count"] == judged == sum(b["count"] for b in told["bins"])
    if drawing:
        drawn = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    code, out, _ = run(capsys, "records", "show", found["run"], "--store", store, "--json")
    (kept,) = json.loads(out)["results"]
    assert kept["kernel"] == "eval" and kept["bits_per_byte"] == found["bits_per_byte"]
    code, out, _ = run(capsys, "records", "list", "--store", store, "--json")
    (listed,) = json.loads(out)["runs"]
    assert code == 0 and (listed["id"], listed["pass"]) == (found["run"], 1)


def test_eval_prints_tables_for_people(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, text: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"
    other.write_bytes(WORDS[25:])
    code, out, err = run(
        capsys, "eval", byte_folder, "--text", text, other, "--limit", 20, "--rounds", 2,
        "--every", 4, "--law", "smooth", "--arm", "quantisers=off", "--backend", "host",
        "--no-record",
    )  # fmt: skip
    assert code == 0, err
    lines = out.splitlines()
    assert lines[2].split() == ["text", "bytes", "bits/byte", "gzip", "-9", "xz", "-9"]
    assert [line.split()[1] for line in lines[3:6]] == ["20", "20", "40"]
    assert "law smooth" in out and "of 40 places, 100.000%" in out
    assert "tokens a round" in out and "slot 0.5" in out and "calibration error" in out
    assert "every byte is scored once" in err and "record" not in err


def test_eval_needs_no_drafter(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, text: Path
) -> None:
    code, out, _ = run(
        capsys, "eval", byte_folder, "--text", text, "--limit", 12, "--rounds", 0, "--by", "steps",
        "--backend", "host", "--no-record", "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0 and found["drafter"] is None and found["run"] is None
    assert found["by"] == "steps" and found["arms"]["drafter"] == "off"
    code, out, _ = run(
        capsys, "eval", byte_folder, "--text", text, "--limit", 12, "--arm", "decode_path=legacy",
        "--backend", "host", "--no-record", "--json",
    )  # fmt: skip
    legacy = json.loads(out)
    assert code == 0 and legacy["drafter"] is None
    assert legacy["bits_per_byte"] == pytest.approx(found["bits_per_byte"], abs=0.05)


def test_texts_written_with_drafts_are_those_without_or_it_leaves_with_1(
    capsys: pytest.CaptureFixture[str],
    byte_folder: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (
        "eval", byte_folder, "--text", text, "--limit", 30, "--rounds", 0, "--prompts", 2,
        "--length", 8, "--context", 24, "--backend", "host", "--no-record", "--json",
    )  # fmt: skip
    code, out, err = run(capsys, *words)
    assert code == 0, err
    written = json.loads(out)["written"]
    assert written["prompts"] == 2 and written["differing"] == 0 and written["first"] is None
    assert written["tokens_per_round"] == written["tokens"] / written["rounds"] > 1
    assert written["plain_tokens_per_s"] == pytest.approx(1 / written["step_s"])
    code, out, err = run(capsys, *words, "--against", "vt=slot", "--against", "vt_tau=0.9")
    assert code == 0, err
    found = json.loads(out)
    other = found["written_against"]
    assert other["switches"]["vt"] == "slot" and found["arms"]["vt"] == "off"
    assert other["tokens"] == written["tokens"] and other["differing"] == 0
    # A window that believes in little verifies less, and so needs no fewer rounds.
    assert other["rounds"] >= written["rounds"] == found["written"]["rounds"]
    code, out, err = run(capsys, *words, "--against", "dense_arm=bf16")
    assert code == 0 and json.loads(out)["written_against"] is None, "it has other weights"
    monkeypatch.setattr(loop_module, "accept_prefix", lambda asked, _: len(asked) - 1)
    code, out, _ = run(capsys, *words)
    written = json.loads(out)["written"]
    assert code == 1 and written["differing"] >= 1 and written["first"] is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--text", "TEXT", "--prompts", "1", "--context", "40"), "--length"),
        ((), "give the texts"),
        (("--text", "no-such-file"), "no-such-file"),
        (("--text", "TEXT", "--against", "a=b", "--law", "smooth"), "give one"),
        (("--text", "TEXT", "--against", "fast"), "--against fast was given"),
        (("--text", "TEXT", "--against", "speed=high"), "speed"),
        (("--text", "TEXT", "--law", "none"), "--law"),
        (("--text", "TEXT", "--context", "2000"), "2..1021"),
        (("--text", "TEXT", "--context", "8", "--stride", "9"), "--stride of 1 to 8"),
        (
            ("--text", "TEXT", "--picture", "PICTURE", "--rounds", "0", "--limit", "4"),
            "reliability",
        ),
        (("--text", "EMPTY"), "holds no byte"),
    ],
    ids=lambda words: " ".join(words)[:40] if isinstance(words, tuple) else words,
)
def test_eval_refuses_with_what_to_do(
    words: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    byte_folder: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    places = {"TEXT": text, "EMPTY": empty, "PICTURE": tmp_path / "p.svg"}
    code, out, err = run(
        capsys, "eval", byte_folder, *(places.get(w, w) for w in words), "--backend", "host",
        "--no-record",
    )  # fmt: skip
    assert code == 2 and says in err and not out
    assert not (tmp_path / "p.svg").exists()


def test_without_a_judged_draft_there_is_no_picture_but_the_scores(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need it: pip install 'dsv4-lab[report]'")
    code, out, err = run(
        capsys, "eval", byte_folder, "--text", text, "--limit", 4, "--picture",
        tmp_path / "p.svg", "--backend", "host", "--no-record",
    )  # fmt: skip
    assert code == 0 and "bits/byte" in out and "no draft was judged" in err
    assert not (tmp_path / "p.svg").exists()


def test_eval_refuses_models_that_know_no_text_or_no_folder(
    capsys: pytest.CaptureFixture[str], text: Path
) -> None:
    for folder, says in ((TINY, "tokenizer.json"), ("mint:tiny", "tokenizer.json")):
        code, _, err = run(capsys, "eval", folder, "--text", text, "--backend", "host")
        assert code == 2 and says in err
