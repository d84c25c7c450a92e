"""Nsight Compute's raw page becomes metrics in SI units; a missing tool is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import DeviceError
from dsv4.runtime.device import cuda_problem
from lab.cases import cases
from lab.cases.select import select
from lab.cli.ncu import _table
from lab.tools import ncu
from tests.lab.planted import lab

# Written from the documented layout of the raw page: header, units, one line a kernel.
_PAGE = """==PROF== Connected to process 4711
==PROF== Profiling "rms_norm": 0%....100% - 1 pass
env  something
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum","launch__registers_per_thread","gpc__cycles_elapsed.avg.per_second","lts__t_sector_hit_rate.pct","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
"","","","us","Mbyte","register/thread","Ghz","%","inst","inst"
"0","4711","rms_norm","4.10","1,048.58","32","1.98","71.5","0.52","3.61"
==PROF== Disconnected
"""  # noqa: E501


def test_metrics_are_in_base_units_and_in_the_order_of_the_headlines() -> None:
    found = {m.name: (m.value, m.unit) for m in ncu.parse(_PAGE)}
    assert found["gpu__time_duration.sum"] == (pytest.approx(4.10e-6), "s")
    assert found["dram__bytes.sum"] == (pytest.approx(1048.58e6), "B")
    assert found["gpc__cycles_elapsed.avg.per_second"] == (pytest.approx(1.98e9), "Hz")
    assert found["launch__registers_per_thread"] == (32.0, "register/thread")
    order = [m.name for m in ncu.parse(_PAGE)]
    assert order == [name for name in [*ncu.HEADLINES, *ncu.STALLS] if name in order]


def test_the_table_tells_the_largest_stalls_first() -> None:
    lines = _table(ncu.parse(_PAGE)).splitlines()
    waits = [line for line in lines if "warps that wait" in line]
    assert [w.split("  ")[0] for w in waits] == [
        "warps that wait for memory", "warps that wait at a barrier",
    ]  # fmt: skip
    assert "3.61" in waits[0]


@pytest.mark.parametrize("text", ["", "no page", '"ID","Kernel Name"\n"",""\n'])
def test_a_page_without_kernels_has_no_metrics(text: str) -> None:
    assert ncu.parse(text) == []


@pytest.mark.parametrize("kernel", ["linear_fp8", "experts_mx_down", "router_gate"])
def test_the_child_runs_the_case_that_was_asked_for_and_no_other_of_its_name(kernel: str) -> None:
    known = cases(kernel)
    names = [case.name for case in known]
    assert len(set(names)) < len(names)
    for case in known:
        _, _, name, _, axes, *_ = ncu.selecting(kernel, case, 0)
        assert select(known, [axes], [name], level="stress", spec=registry.spec(kernel)) == [case]


def test_a_missing_tool_names_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ncu, "_PLACES", (Path("/nowhere/bin"),))
    with pytest.raises(DeviceError, match="/nowhere/bin"):
        ncu.find_ncu()


def test_counters_that_may_not_be_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(DeviceError, match="RestrictProfiling"):
        ncu.profile("rms_norm", ["rms_norm"])


def test_without_the_tool_the_command_ends_with_8(tmp_path: Path) -> None:
    if shutil.which("ncu") or any((p / "ncu").is_file() for p in ncu._PLACES):
        pytest.skip("ncu is here")
    done = lab(tmp_path, "ncu", "rms_norm")
    assert (done.returncode, "Nsight Compute" in done.stderr) == (8, True)


@pytest.mark.gpu
def test_a_launch_on_a_gpu_is_profiled_and_recorded(tmp_path: Path) -> None:
    if cuda_problem() is not None:
        pytest.skip("needs a GPU")
    done = lab(tmp_path, "--json", "ncu", "rms_norm", "-c", "verify")
    assert done.returncode == 0, done.stderr
    assert "gpu__time_duration.sum" in done.stdout
