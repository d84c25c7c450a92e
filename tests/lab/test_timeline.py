"""A step's time in place: what records of its launches come to, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.errors import Refusal
from dsv4.runtime.device import cuda_problem
from lab.timeline import placed
from tests.lab.planted import lab


@dataclass(frozen=True)
class Sent:
    """What a timeline reads of an entry."""

    name: str
    size_bytes: int = 100


STEP: list[Any] = [
    Sent("step_rows"), Sent("linear_fp8", 7000), Sent("hyper_post"), Sent("linear_fp8", 9000),
    Sent("finish_window"),
]  # fmt: skip


def replay(*times: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    begun, waited = np.array(times, np.uint64).T
    return begun, waited


def test_launches_have_the_time_to_the_next_wait_and_add_up_to_the_step() -> None:
    one = replay((1000, 2000), (1500, 5000), (4000, 9000), (8000, 15000))
    found = placed(STEP, [one], position=5, rows=2)
    assert (found.position, found.rows, found.launches) == (5, 2, 4)
    assert found.span_s == pytest.approx(13e-6)
    assert found.without == ("hyper_post",)
    rows, dense, last = found.kernels
    assert (rows.kernel, rows.launches, rows.place_s) == ("step_rows", 1, pytest.approx(3e-6))
    # The launch that does not wait is in the time of the one in front of it.
    assert (dense.launches, dense.place_s) == (2, pytest.approx(5e-6))
    assert dense.total_s == pytest.approx(10e-6)
    assert dense.early_s == pytest.approx(4.25e-6)
    assert dense.size_bytes == 7000 + 9000
    # Behind the last one nothing waits.
    assert last.size_bytes == 0
    assert (last.kernel, last.total_s, last.early_s) == ("finish_window", 0.0, pytest.approx(7e-6))
    assert sum(k.total_s for k in found.kernels) == pytest.approx(found.span_s)


def test_the_median_of_replays_is_taken_launch_by_launch() -> None:
    slow = replay((0, 0), (0, 9000), (0, 10000), (0, 11000))
    usual = replay((0, 0), (0, 1000), (0, 2000), (0, 3000))
    found = placed(STEP, [usual, slow, usual])
    assert found.span_s == pytest.approx(3e-6)


def test_records_of_another_step_are_refused() -> None:
    short = replay((0, 1), (1, 2), (2, 3))
    with pytest.raises(Refusal, match="4 launches that wait was replayed\n  3 began and 3 waited"):
        placed(STEP, [short])


def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    if cuda_problem() is None:
        pytest.skip("a GPU is here")
    done = lab(tmp_path, "timeline", "mint:tiny")
    assert done.returncode == 8
    assert "a timeline was asked for, but" in done.stderr


@pytest.mark.gpu
def test_on_a_gpu_the_launches_of_a_step_are_found(tmp_path: Path) -> None:
    if cuda_problem() is not None:
        pytest.skip("needs a GPU")
    done = lab(tmp_path, "--json", "timeline", "mint:tiny", "--context", "9", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["timeline"]
    assert found["launches"] == sum(k["launches"] for k in found["kernels"]) > 10
    assert 0 < found["span_s"] < 1e-2
    assert sum(k["total_s"] for k in found["kernels"]) == pytest.approx(found["span_s"])
