"""The engine's targets and drafters, on the host backend, against recorded outputs."""

import pytest

from lab.drafter_diff import drafter_diff
from tests.goldens import golden_folder

TARGETS = ["qwen3-dense", "qwen3-next-dense", "qwen3-next-moe", "qwen35-dense"]
DRAFTERS = [
    "dflash",
    "dflash-swa",
    "dflash-nexttoken",
    "dflash2",
    "dflash2-scaled",
    "dspark-qwen3",
    "dspark-qwen3-gated",
    "dspark-qwen3-rnn",
    "dspark-specforge",
]
RUNS = ["e2e-dspark", "e2e-dflash", "e2e-dflash2", "e2e-dflash2-hybrid"]


@pytest.mark.parametrize("name", TARGETS + DRAFTERS)
def test_numbers_are_as_near_as_the_recorded_float32_run_and_integers_equal(name: str) -> None:
    report = drafter_diff(golden_folder(name), subject="engine")
    assert [c.name for c in report.broken] == []
    assert len(report.checks) > 14


@pytest.mark.stress
@pytest.mark.parametrize("name", RUNS)
def test_whole_runs_emit_and_accept_as_recorded(name: str) -> None:
    report = drafter_diff(golden_folder(name), subject="engine")
    assert [c.name for c in report.broken] == []
