"""`dsv4-lab new`: five files that compile and pass their own test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsv4.errors import SpecError
from lab import family
from lab.cli.main import main

ROOT = Path(__file__).parents[2]
FILES = [
    "cuda/{}.cu",
    "oracle/{}.py",
    "dsv4/kernels/{}.py",
    "lab/cases/{}.py",
    "tests/test_{}.py",
]


def test_the_five_files_pass_their_own_test(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("cuda", "dsv4", "lab", "oracle"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    # A pytest of its own, also where these tests are shared out among workers.
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env = {**own, "PYTHONPATH": str(tmp_path)}
    for command in (
        ["lab.cli.main", "new", "token_shift"],
        ["pytest", "-q", "-m", "not gpu and not speed", "tests/test_token_shift.py"],
        ["lab.cli.main", "kernel-diff", "token_shift", "--backend", "host", "--no-record"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    written = [tmp_path / path.format("token_shift") for path in FILES]
    assert all(path.is_file() for path in written)


def test_a_dry_run_shows_everything_and_writes_nothing() -> None:
    before = {p: p.stat().st_mtime for p in (ROOT / "cuda").iterdir()}
    shown = CliRunner().invoke(main, ["new", "token_shift", "--dry-run"])
    assert shown.exit_code == 0
    assert [path.format("token_shift") in shown.stdout for path in FILES] == [True] * 5
    document = json.loads(
        CliRunner().invoke(main, ["new", "token_shift", "--dry-run", "--json"]).stdout
    )
    assert list(document["files"]) == [path.format("token_shift") for path in FILES]
    assert document["written"] is False
    assert {p: p.stat().st_mtime for p in (ROOT / "cuda").iterdir()} == before


@pytest.mark.parametrize("name", ["Big", "with-dash", "2fast", "_x", "a__b", "lambda", "é", ""])
def test_a_name_that_cannot_be_a_stem_is_refused(name: str) -> None:
    result = CliRunner().invoke(main, ["new", "--", name])
    assert result.exit_code == 2
    assert "cannot name a family" in result.stderr


def test_an_existing_kernel_or_file_is_never_overwritten(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["new", "cast_bf16"])
    assert result.exit_code == 2 and "is a kernel of family cast already" in result.stderr
    result = CliRunner().invoke(main, ["new", "cast"])
    assert result.exit_code == 2 and "nothing was written" in result.stderr
    files = {"oracle/x.py": "new", "cuda/x.cu": "new"}
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "x.cu").write_text("mine")
    with pytest.raises(SpecError, match=r"cuda/x\.cu exists already"):
        family.write(files, tmp_path)
    assert (tmp_path / "cuda" / "x.cu").read_text() == "mine"
    assert not (tmp_path / "oracle").exists()


def test_when_one_file_cannot_be_written_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    with pytest.raises(OSError, match="No such file"):
        family.write({"cuda/x.cu": "1", "nowhere/x.py": "2"}, tmp_path)
    assert list((tmp_path / "cuda").iterdir()) == []
