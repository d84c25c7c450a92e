"""When asynchronous copies land on the host: late where order is shuffled, at once elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime import sources
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import prepare
from dsv4.spec import F32, Exact, Geometry, In, Out, Work, kernel

_SOURCE = """
#include "common/copy.cuh"
extern "C" __global__ void careless(const float* x, float* y) {
    __shared__ __align__(16) float row[32];
    if (threadIdx.x < 8) cp_async16(&row[4 * threadIdx.x], &x[4 * threadIdx.x]);
    WAIT;
    __syncthreads();
    y[threadIdx.x] = row[threadIdx.x];
}
"""


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
@pytest.mark.parametrize(
    ("wait", "waits"),
    [
        ("cp_async_wait<0>()", False),  # its copies are in no group
        ("cp_async_wait_all()", True),
        ("cp_async_commit(); cp_async_wait<0>()", True),
    ],
)
def test_a_wait_for_groups_waits_for_no_copy_outside_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, wait: str, waits: bool
) -> None:
    (tmp_path / "common").symlink_to(sources.cuda_root() / "common")
    (tmp_path / "host").symlink_to(sources.cuda_root() / "host")
    (tmp_path / "careless.cu").write_text(_SOURCE.replace("WAIT", wait))
    monkeypatch.setattr("dsv4.runtime.hostdevice.cuda_root", lambda: tmp_path)
    spec = kernel(
        name="careless", family="careless", summary="", geometry=lambda s: Geometry(1, 32),
        args=[In("x", F32, "N"), Out("y", F32, "N")], contract=dict(y=Exact("a copy")),
        work=lambda s: Work(read=4 * s.N, write=4 * s.N),
    ).spec  # fmt: skip
    x = np.arange(32, dtype=np.float32)
    made = []
    for seed in range(3):
        y = np.empty_like(x)
        prepare(spec, x, out=y, device=HostDevice(mode=mode, seed=seed)).run()
        made.append(np.array_equal(x, y))
    # Only a late landing shows what the card would do.
    assert made == [waits or mode != "shuffle"] * 3
