"""`dsv4-lab env` and `doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsv4.errors import DeviceError
from lab import diagnosis
from lab.cli.main import main


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of doctor."""
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    return result.exit_code, json.loads(result.stdout)


def state(document: dict[str, Any], name: str) -> dict[str, str]:
    """One finding by name."""
    (found,) = (f for f in document["findings"] if f["name"] == name)
    return dict(found)


def test_env_prints_a_document_and_a_table_of_the_same_facts() -> None:
    document = json.loads(CliRunner().invoke(main, ["env", "--json"]).stdout)
    assert document["command"] == "env"
    assert document["env"]["python"] and document["env"]["numpy"]["version"]
    shown = CliRunner().invoke(main, ["env"])
    assert shown.exit_code == 0
    assert document["env"]["numpy"]["version"] in shown.stdout


def test_doctor_finds_a_backend_here() -> None:
    code, document = doctor()
    assert code == 0 and document["usable"]
    assert state(document, "numpy")["state"] == "ok"


def test_doctor_prints_the_line_that_installs_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> str:
        raise DeviceError("no NVRTC\n  more")

    monkeypatch.setattr(diagnosis, "nvrtc_version", missing)
    monkeypatch.setattr(diagnosis, "_has", lambda module: False)
    monkeypatch.setenv("DSV4_CXX", "no-such-compiler")
    code, document = doctor()
    assert code == 8 and document["usable"] == []
    assert "pip install ziglang" in state(document, "compiler")["fix"]
    assert "cupy-cuda12x" in state(document, "cupy")["fix"]
    assert "nvidia-cuda-nvrtc-cu12" in state(document, "nvrtc")["fix"]
    assert state(document, "matplotlib") == {
        "name": "matplotlib",
        "state": "optional",
        "detail": "plots in reports",
        "fix": "pip install matplotlib",
    }


def test_beside_a_driver_a_missing_cupy_is_missing_and_not_optional(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "_has", lambda module: False)
    assert diagnosis._cupy(True).state == "missing"
    assert diagnosis._cupy(False).state == "optional"


def test_doctor_says_when_the_store_cannot_be_written_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, document = doctor("--store", str(tmp_path / "file" / "lab.db"))
    assert state(document, "store")["state"] == "missing"
    assert "--store" in state(document, "store")["fix"]
    _, document = doctor("--store", str(tmp_path / "new" / "lab.db"))
    assert state(document, "store")["state"] == "ok"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_text_names_the_backends_that_can_run() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert "backends that can run: " in result.stdout
