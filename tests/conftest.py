"""Fixtures and rules of the whole test suite."""

from __future__ import annotations

import json
import os

# Small matrices: the threads of a BLAS only get in each other's way. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.runtime.hostdevice import HostDevice
from lab import testing


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Callable[..., SimpleNamespace]:
    """Launches one kernel on given contents and returns its outputs by name.

    `run("rms_norm", T=2, D=8, x=0.0, eps=1e-6).y`; on a machine with a GPU it runs there as well.
    """
    device = testing.cuda() if request.param == "cuda" else HostDevice()

    def call(kernel: str, **content: Any) -> SimpleNamespace:
        return testing.run_kernel(kernel, device, **content)

    return call


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made checkpoint with a drafter, 512 tokens of which the first are bytes: never written to.

    It speaks a simple language, of which the drafter knows four words in five.
    """
    folder = tmp_path_factory.mktemp("made") / "bytes"
    plan = plan_mint("tiny", "0731", seed=1, layers=3, agreeing=0.8)
    write_checkpoint(plan, folder, device=HostDevice())
    declared = {"tokenizer_class": "bytes", "bos_token_id": 256, "eos_token_id": 257}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared), encoding="utf-8")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Speed tests run under --benchmark-only and nowhere else: a timing is never asserted."""
    if config.getoption("benchmark_only", False):
        return
    speed = [item for item in items if item.get_closest_marker("speed")]
    if speed:
        config.hook.pytest_deselected(items=speed)
        items[:] = [item for item in items if not item.get_closest_marker("speed")]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the record that the speed tests wrote their timings into, if they ran."""
    testing.finish_benchmarks(int(exitstatus))
