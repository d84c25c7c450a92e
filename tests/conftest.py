"""Fixtures and rules of the whole test suite."""

from __future__ import annotations

import os

# Small matrices: the threads of a BLAS only get in each other's way. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

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
