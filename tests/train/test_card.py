"""The card: tables from documents of eval, kept beside it without paths, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsv4.errors import Refusal
from tools.train.__main__ import main
from tools.train.card import EVALUATIONS, RESULT

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "v4-python"
PLACES = {"tokens_per_round": 3.25, "rows_per_round": 6.0, "acceptance": [[3, 4], [1, 3]]}
DOCUMENT: dict[str, Any] = {
    "model": "/somewhere/v4-python",
    "files": [{"path": "/somewhere/timeit.py"}],
    "env": {"host": "mine"},
    "device": "a card",
    "size_bytes": 2048,
    "bits_per_byte": 1.5,
    "by": "prompt",
    "windows": {"context": 2048, "stride": 1024},
    "arms": {"vt": "off"},
    "against": None,
    "drafter": {
        "block": 5,
        "rounds": 4,
        "window_off": PLACES,
        "window_slot": {**PLACES, "tau": 0.5, "acceptance": [[2, 2]]},
        "calibration": {
            "count": 7,
            "error": 0.125,
            "bins": [
                {"low": 0.0, "high": 0.5, "count": 0, "confidence": 0.0, "accepted": 0.0},
                {"low": 0.5, "high": 1.0, "count": 7, "confidence": 0.75, "accepted": 0.625},
            ],
        },
    },
    "written": {
        "prompts": 50,
        "tokens": 800,
        "differing": 0,
        "tokens_per_round": 3.5,
        "plain_tokens_per_s": 10.0,
        "drafted_tokens_per_s": 20.0,
    },
    "written_against": {
        "switches": {"vt": "slot", "vt_tau": "0.05"},
        "prompts": 50,
        "tokens": 800,
        "differing": 0,
        "tokens_per_round": 3.4,
        "plain_tokens_per_s": 10.0,
        "drafted_tokens_per_s": 21.0,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a result and no card."""
    made = tmp_path / "made"
    made.mkdir()
    shutil.copy(EXAMPLE / RESULT, made)
    return made


def carded(folder: Path, *documents: dict[str, Any]) -> Result:
    words = []
    for number, document in enumerate(documents):
        file = folder.parent / f"document{number}.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        words.append(str(file))
    return CliRunner().invoke(main, ["card", str(folder), *words])


def test_documents_become_tables(folder: Path) -> None:
    assert carded(folder, DOCUMENT).exit_code == 0
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| a card | prompt | `vt=off` | 2048 | 1.5000 | - |" in text
    assert "| off | 3.25 | 6.00 | 3/4 (75.0%) | 1/3 (33.3%) |" in text
    assert "| slot 0.5 | 3.25 | 6.00 | 2/2 (100.0%) | - |" in text
    assert "calibration error 0.125" in text and "| 0.5 to 1.0 | 7 | 0.750 | 0.625 |" in text
    assert "0.0 to 0.5" not in text
    assert "| a card | `vt=off` | 50 | 800 | 0 | 3.50 | 10 | 20 |" in text
    assert "| `vt=slot vt_tau=0.05` | 50 | 800 | 0 | 3.40 | 10 | 21 |" in text


def test_a_processor_has_no_speeds(folder: Path) -> None:
    host = {**DOCUMENT, "device": "host (run)", "written_against": None}
    assert carded(folder, host).exit_code == 0
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| host (run) | `vt=off` | 50 | 800 | 0 | 3.50 | - | - |" in text


def test_what_is_kept_names_no_place_and_makes_the_same_card_again(folder: Path) -> None:
    carded(folder, DOCUMENT)
    first = (folder / "README.md").read_bytes()
    kept = (folder / EVALUATIONS).read_text(encoding="utf-8")
    assert "somewhere" not in kept and "mine" not in kept
    (folder / "README.md").unlink()
    assert carded(folder).exit_code == 0
    assert (folder / "README.md").read_bytes() == first


def test_the_whole_held_out_text_stands_beside_torch_and_others_beside_what_they_name(
    folder: Path,
) -> None:
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    bits = result["bits_per_byte"]["engine"]
    whole = {**DOCUMENT, "size_bytes": result["corpus"]["held_out"]["bytes"],
             "bits_per_byte": bits / 1.01}  # fmt: skip
    second = {"law": None, "switches": {"dots_arm": "f64", "vt": None}, "relative": -0.002}
    carded(folder, whole, {**DOCUMENT, "against": second})
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "torch: +1.000%" in text and "`dots_arm=f64`: -0.200%" in text


def test_a_score_of_torch_is_held_against_the_same_bytes(folder: Path) -> None:
    torch = {"engine": 1.503, "smooth": 1.5, "size_bytes": 2048}
    carded(folder, DOCUMENT, torch, {**DOCUMENT, "size_bytes": 2047})
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| 2048 | 1.5000 | torch: +0.200% |" in text and "| 2047 | 1.5000 | - |" in text
    assert "| 1.503" not in text


def test_the_committed_card_is_what_its_documents_say(folder: Path) -> None:
    if (EXAMPLE / EVALUATIONS).is_file():
        shutil.copy(EXAMPLE / EVALUATIONS, folder)
    assert carded(folder).exit_code == 0
    assert (folder / "README.md").read_bytes() == (EXAMPLE / "README.md").read_bytes()


def test_what_is_no_document_or_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    done = carded(folder, {"model": "x"})
    assert isinstance(done.exception, Refusal) and "a document of eval" in str(done.exception)
    assert not (folder / "README.md").exists()
    (tmp_path / "bare").mkdir()
    done = carded(tmp_path / "bare")
    assert isinstance(done.exception, Refusal) and RESULT in str(done.exception)
