"""A thousand launches of every repeatable kernel give the same bytes."""

from __future__ import annotations

import pytest

from dsv4 import registry
from dsv4.runtime.device import Device
from dsv4.runtime.hostdevice import HostDevice
from lab import testing
from lab.cases import Case, cases
from lab.result import PASS
from lab.run import RunOptions, run_case

_REPEATABLE = [name for name, k in registry.kernels().items() if k.spec.repeatable]


def _largest(kernel: str) -> Case:
    """The quick case that moves the most bytes: the most blocks, and the most ways to race."""
    quick = [c for c in cases(kernel) if c.level == "quick"]

    def size(case: Case) -> int:
        product = 1
        for value in case.axes.values():
            product *= max(1, value)
        return product

    return max(quick, key=size)


def _repeats(kernel: str, device: Device, relaunch: int) -> None:
    options = RunOptions(time=False, relaunch=relaunch)
    result = run_case(registry.spec(kernel), _largest(kernel), device, options)
    assert result.relaunches == relaunch
    assert result.relaunch_identical
    assert result.verdict == PASS, result.reasons


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", _REPEATABLE)
def test_a_thousand_launches_on_the_gpu_give_the_same_bytes(kernel: str) -> None:
    _repeats(kernel, testing.cuda(), 1000)


@pytest.mark.parametrize("kernel", _REPEATABLE)
def test_ten_launches_on_the_host_with_two_workers_give_the_same_bytes(kernel: str) -> None:
    _repeats(kernel, HostDevice(workers=2), 10)
