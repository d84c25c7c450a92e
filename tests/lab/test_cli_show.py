"""`dsv4-lab show`: everything about one kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsv4.errors import DeviceError
from lab import builds, page
from lab.cli.main import main
from lab.record.store import Store


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own."""
    monkeypatch.setenv("DSV4_STORE", str(tmp_path / "lab.db"))
    return tmp_path / "lab.db"


def show(*arguments: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(main, ["show", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    """The command's document."""
    result = show("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def no_nvrtc(*arguments: object, **named: object) -> None:
    """A build on a machine without NVRTC."""
    raise DeviceError("no NVRTC here")


def test_the_five_files_come_first() -> None:
    lines = show("cast").stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:6]] == [
        "cuda/cast.cu",
        "oracle/cast.py",
        "dsv4/kernels/cast.py",
        "lab/cases/cast.py",
        "tests/test_cast.py",
    ]


def test_a_missing_file_is_marked(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "cast.cu").write_text("")
    assert page.missing_files("cast", tmp_path) == [
        "oracle/cast.py",
        "dsv4/kernels/cast.py",
        "lab/cases/cast.py",
        "tests/test_cast.py",
    ]


def test_signature_contract_and_geometry_are_shown_for_a_case() -> None:
    shown = show("cast", "--case", "tail").stdout
    assert "const float* x [N]  // f32" in shown
    assert "y  bit_exact: one rounding, the one the model prescribes" in shown
    assert "case tail  N=257\n  grid 2x1x1  block 256x1x1" in shown


def test_the_document_says_the_same() -> None:
    found = document("cast", "--case", "tail")
    assert (found["schema"], found["command"], found["kernel"]) == (1, "show", "cast_bf16")
    assert found["case"]["grid"] == [2, 1, 1]
    assert found["case"]["bytes"] == 257 * 6
    assert found["contract"]["y"]["contract"] == "bit_exact"
    assert found["args"][0]["axes"] == ["N"]


def test_the_history_is_one_verdict_a_run(store: Path) -> None:
    assert "NEW: never recorded here" in show("cast").stdout
    with Store.open(store) as opened:
        for verdicts in (["PASS", "FAIL"], ["PASS", "PASS"]):
            run = opened.begin_run([], {})
            for verdict in verdicts:
                facts = {"kernel": "cast_bf16", "case": "c", "verdict": verdict, "backend": "host"}
                opened.add_result(run, facts)
    assert "history  FAIL PASS  last in record 2" in show("cast").stdout
    assert [h["verdict"] for h in document("cast")["history"]] == ["FAIL", "PASS"]


def test_a_page_is_complete_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "compile_cubin", no_nvrtc)
    assert "NVRTC is missing; see dsv4-lab doctor" in show("cast").stdout
    assert document("cast")["build"] is None


def test_the_source_is_printed_as_it_is() -> None:
    source = (Path(__file__).parents[2] / "cuda" / "cast.cu").read_text()
    assert show("cast", "--source").stdout == source
    assert document("cast", "--source")["source"] == source


def test_ptx_needs_nvrtc_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "compile_ptx", no_nvrtc)
    result = show("cast", "--ptx")
    assert result.exit_code == 8
    assert "no NVRTC here" in result.stderr


def test_sass_without_a_disassembler_names_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = show("cast", "--sass")
    assert result.exit_code == 8
    assert "cuobjdump" in result.stderr and "--ptx" in result.stderr


def test_several_kernels_at_once_are_refused_with_their_names() -> None:
    result = show("movement")
    assert result.exit_code == 2
    assert "movement_embed" in result.stderr and "choose one" in result.stderr


def test_a_family_of_one_kernel_names_it() -> None:
    assert page.one_spec("cast").name == "cast_bf16"


def test_a_kernel_named_like_its_family_is_itself() -> None:
    assert page.one_spec("swiglu").name == "swiglu"
