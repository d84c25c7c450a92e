"""What `make` and the package promise, as far as it shows without installing anything."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERBS = ("setup", "diff", "check", "test", "compile", "gpu", "bench", "report", "clean")


def extra(choice: str, folder: Path, *, smi: str | None, cupy: bool) -> str:
    """What .ci/extra prints on a machine with this nvidia-smi output and with or without CuPy."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexit {0 if cupy else 1}\n")
    python.chmod(0o755)
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sed", "head", "sh"):
        (tools / name).symlink_to(f"/bin/{name}" if name == "sh" else f"/usr/bin/{name}")
    if smi is not None:
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\necho '{smi}'\n")
        (tools / "nvidia-smi").chmod(0o755)
    command = ["/bin/sh", str(ROOT / ".ci" / "extra"), choice, str(python)]
    done = subprocess.run(
        command, env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("choice", "smi", "cupy", "expected"),
    [
        ("auto", None, False, ""),
        ("auto", "| Driver Version: 580.1   CUDA Version: 13.0 |", False, "[cuda13]"),
        ("auto", "| Driver Version: 570.1   CUDA Version: 12.8 |", False, "[cuda12]"),
        ("auto", "| Driver Version: 470.1   CUDA Version: 11.4 |", False, ""),
        ("auto", "| Driver Version: 570.1   CUDA Version: 12.8 |", True, ""),
        ("auto", "NVIDIA-SMI has failed", False, ""),
        ("12", None, False, "[cuda12]"),
        ("13", None, True, "[cuda13]"),
        ("none", "| CUDA Version: 12.8 |", False, ""),
    ],
)
def test_the_driver_decides_which_cupy_is_installed_unless_told(
    tmp_path: Path, choice: str, smi: str | None, cupy: bool, expected: str
) -> None:
    assert extra(choice, tmp_path, smi=smi, cupy=cupy) == expected


def test_an_unknown_cuda_is_refused() -> None:
    command = ["/bin/sh", str(ROOT / ".ci" / "extra"), "11", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "CUDA=11" in done.stderr


def test_make_alone_prints_the_verbs() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [verb for verb in VERBS if f"make {verb} " not in done.stdout] == []


def test_an_old_interpreter_is_refused_with_the_way_to_name_another(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "diff", "PYTHON=false"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "make PYTHON=python3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_package_declares_what_the_documents_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "dsv4-lab"
    assert project["scripts"] == {"dsv4-lab": "lab.cli.main:main"}
    extras = {"cuda12", "cuda13", "compile", "dev", "report", "shell", "lt", "zig", "text"}
    extras |= {"ray", "rivals", "train", "workers"}
    assert set(project["optional-dependencies"]) == extras
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [e for e in sorted(extras) if f"`{e}`" not in readme] == []
    core = {d.partition(">")[0] for d in project["dependencies"]}
    assert core == {"click", "numpy", "safetensors"}


def test_the_example_goes_into_the_sdist_and_not_into_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = project["tool"]["hatch"]["build"]["targets"]
    # Tests of the sdist read it; who installs a wheel names a folder of his own.
    assert "/examples" in build["sdist"]["include"] and (ROOT / "examples").is_dir()
    assert "examples" not in build["wheel"]["only-include"]


def test_the_command_runs_from_an_uninstalled_checkout(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli.main", "list", "cast"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("cast_bf16")
