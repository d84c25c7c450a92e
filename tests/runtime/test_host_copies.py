"""When asynchronous copies land on the host: late where order is shuffled, at once elsewhere; and
what check mode says of places that one may still write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.errors import KernelFault
from dsv4.runtime import sources
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import prepare
from dsv4.spec import F32, Exact, Geometry, In, Out, Work, kernel

_SOURCE = """
#include "common/copy.cuh"
extern "C" __global__ void careless(const float* x, float* y) {
    __shared__ __align__(16) float row[64];
    const int t = threadIdx.x;
    BODY
}
"""
_COPY = "if (t < 16) cp_async16(&row[4 * t], &x[4 * t]);"
_READ = "y[t] = row[t];"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call that gives the kernel with that body, and 64 threads in a block."""
    (tmp_path / "common").symlink_to(sources.cuda_root() / "common")
    (tmp_path / "host").symlink_to(sources.cuda_root() / "host")
    monkeypatch.setattr("dsv4.runtime.hostdevice.cuda_root", lambda: tmp_path)

    def build(body: str) -> Any:
        (tmp_path / "careless.cu").write_text(_SOURCE.replace("BODY", body))
        return kernel(
            name="careless", family="careless", summary="", geometry=lambda s: Geometry(1, 64),
            args=[In("x", F32, "N"), Out("y", F32, "N")], contract=dict(y=Exact("a copy")),
            work=lambda s: Work(read=4 * s.N, write=4 * s.N),
        ).spec  # fmt: skip

    return build


def copies_right(spec: Any, mode: str, seed: int) -> bool:
    x = np.arange(64, dtype=np.float32)
    y = np.empty_like(x)
    prepare(spec, x, out=y, device=HostDevice(mode=mode, seed=seed)).run()
    return np.array_equal(x, y)


@pytest.mark.parametrize("mode", ["run", "shuffle"])
@pytest.mark.parametrize(
    ("wait", "waits"),
    [
        ("cp_async_wait<0>();", False),  # its copies are in no group
        ("cp_async_wait_all();", True),
        ("cp_async_commit(); cp_async_wait<0>();", True),
    ],
)
def test_a_wait_for_groups_waits_for_no_copy_outside_of_them(
    built: Any, mode: str, wait: str, waits: bool
) -> None:
    spec = built(f"{_COPY} {wait} __syncthreads(); {_READ}")
    # Only a late landing shows what the card would do.
    assert [copies_right(spec, mode, seed) for seed in range(3)] == [waits or mode != "shuffle"] * 3


_TWO_GROUPS = """
    if (t < 8) cp_async16(&row[4 * t], &x[4 * t]);
    cp_async_commit();
    if (t < 8) cp_async16(&row[32 + 4 * t], &x[32 + 4 * t]);
    cp_async_commit();
"""


@pytest.mark.parametrize(
    "body",
    [
        f"{_COPY} cp_async_wait_all(); __syncthreads(); {_READ}",
        # A place is used again behind its wait and a barrier.
        f"{_COPY} cp_async_wait_all(); __syncthreads(); {_READ} __syncthreads();"
        f" {_COPY} cp_async_wait_all(); __syncthreads(); {_READ}",
        # The older of two groups is there, then the younger.
        f"{_TWO_GROUPS} cp_async_wait<1>(); __syncthreads(); if (t < 32) {_READ}"
        f" cp_async_wait<0>(); __syncthreads(); if (t >= 32) {_READ}",
    ],
)
def test_copies_that_are_waited_for_pass(built: Any, body: str) -> None:
    assert copies_right(built(body), "check", 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"{_COPY} cp_async_wait<0>(); __syncthreads(); {_READ}", "has not waited for it yet"),
        (f"{_TWO_GROUPS} cp_async_wait<1>(); __syncthreads(); {_READ}", "has not waited for it"),
        # Each thread waits for its own copies, behind the barrier.
        (
            f"{_COPY} cp_async_commit(); __syncthreads(); cp_async_wait<0>(); {_READ}",
            "has not waited for it yet|no __sync",
        ),
        # Even the thread itself reads too early.
        (
            "if (t < 16) { cp_async16(&row[4 * t], &x[4 * t]); y[t] = row[4 * t]; }",
            "has not waited",
        ),
        (f"{_COPY} {_COPY} cp_async_wait_all(); __syncthreads(); {_READ}", "has not waited for it"),
    ],
)
def test_what_a_copy_may_still_write_is_nobody_elses(built: Any, body: str, words: str) -> None:
    with pytest.raises(KernelFault, match=words) as found:
        copies_right(built(body), "check", 0)
    assert "race" in str(found.value)
