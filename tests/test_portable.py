"""The same bytes everywhere: host and GPU runs against one committed file of digests."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from dsv4.runtime.device import Device
from dsv4.runtime.hostdevice import HostDevice
from dsv4.spec import KernelSpec
from lab import testing
from lab.cases import Case
from lab.record import portable

_CASES = [
    pytest.param(spec, case, id=f"{spec.name}[{case.label}]")
    for spec, case in portable.portable_cases()
]


def _agrees(spec: KernelSpec, case: Case, device: Device) -> None:
    wanted = {_key(row["kernel"], row["case"], row["axes"]): row for row in portable.rows()}
    found = portable.row_of(spec, case, device)
    key = _key(spec.name, case.name, case.axes)
    assert key in wanted, (
        "no committed digest; after a review: python -m lab.record.portable --write"
    )
    assert found["input_digest"] == wanted[key]["input_digest"], "the inputs differ, not the kernel"
    assert found["output_digest"] == wanted[key]["output_digest"]


@pytest.mark.parametrize(("spec", "case"), _CASES)
def test_the_host_gives_the_committed_bytes(spec: KernelSpec, case: Case) -> None:
    _agrees(spec, case, HostDevice())


@pytest.mark.gpu
@pytest.mark.parametrize(("spec", "case"), _CASES)
def test_the_gpu_gives_the_committed_bytes(spec: KernelSpec, case: Case) -> None:
    _agrees(spec, case, testing.cuda())


def test_no_committed_digest_is_left_over() -> None:
    current = {_key(spec.name, case.name, case.axes) for spec, case in portable.portable_cases()}
    committed = {_key(row["kernel"], row["case"], row["axes"]) for row in portable.rows()}
    assert committed - current == set()


def _key(kernel: str, case: str, axes: Mapping[str, int]) -> tuple[str, str, str]:
    return kernel, case, json.dumps(dict(axes), sort_keys=True)
