"""Recorded folders for tests: the committed one, and others where they are present."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from lab.recorded import Recorded, read_recorded

ROOT = Path(__file__).resolve().parents[1]


def golden_folder(name: str) -> Path:
    """The folder of that name: tests/data, else DSV4_GOLDENS; the test is skipped without it."""
    committed = ROOT / "tests" / "data" / name
    if committed.is_dir():
        return committed
    root = Path(os.environ.get("DSV4_GOLDENS") or ROOT.parent / "shared" / "goldens")
    if not (root / name / "golden.safetensors").is_file():
        pytest.skip(f"{name} is not here; set DSV4_GOLDENS to the folder that holds it")
    return root / name


@functools.lru_cache(maxsize=4)
def golden(name: str) -> Recorded:
    """The content of a recorded folder; skips like `golden_folder`."""
    return read_recorded(golden_folder(name))
