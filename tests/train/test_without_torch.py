"""Without torch the commands that train say so; the corpus needs none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsv4.errors import Refusal
from tools.train.__main__ import main


def test_training_without_torch_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["run", "--out", str(tmp_path)])
    assert isinstance(done.exception, Refusal)
    assert "torch is not installed" in str(done.exception)
    assert "dsv4-lab[train]" in str(done.exception)


def test_the_corpus_is_printed_without_torch() -> None:
    done = CliRunner().invoke(main, ["corpus"])
    assert done.exit_code == 0
    assert json.loads(done.output)["held_out"]["modules"]


def test_paths_of_held_out_files_are_printed_for_eval() -> None:
    done = CliRunner().invoke(main, ["corpus", "--held-out"])
    paths = [Path(line) for line in done.output.splitlines()]
    assert done.exit_code == 0 and all(path.is_file() for path in paths)
    assert "argparse.py" in {path.name for path in paths}
