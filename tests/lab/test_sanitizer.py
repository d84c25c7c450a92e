"""compute-sanitizer's log becomes rows; on host the check mode takes its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsv4.errors import DeviceError
from dsv4.runtime.device import cuda_problem
from lab.tools import sanitizer

ROOT = Path(__file__).resolve().parents[2]
# Written from the documented layout of the tool's reports.
_LOG = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at cast_bf16+0xd0 in /somewhere/cuda/cast.cu:13
=========     by thread (31,0,0) in block (1,0,0)
=========     Access at 0x7f00 is out of bounds
=========
========= Error: Race reported between Write access at cast_bf16+0x50 in /somewhere/cuda/cast.cu:20
=========     and Read access at cast_bf16+0x90 in /somewhere/cuda/cast.cu:22 [64 hazards]
=========
========= ERROR SUMMARY: 2 errors
"""


def test_findings_carry_kernel_file_and_line() -> None:
    first, second = sanitizer.parse("memcheck", _LOG)
    assert (first.kernel, first.file, first.line) == ("cast_bf16", "cast.cu", 13)
    assert first.what.startswith("Invalid __global__ write of size 2")
    assert (second.kernel, second.line) == ("cast_bf16", 20)


def test_a_clean_log_has_no_findings() -> None:
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.parse("memcheck", clean) == ()


def test_a_missing_tool_names_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sanitizer, "_PLACES", (Path("/nowhere/bin"),))
    with pytest.raises(DeviceError, match="/nowhere/bin"):
        sanitizer.find_sanitizer()


def test_on_host_the_check_mode_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli", "sanitize", "cast", "--backend", "host"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout


@pytest.mark.gpu
def test_a_planted_overrun_is_found_with_its_line(tmp_path: Path) -> None:
    if cuda_problem() is not None:
        pytest.skip(f"needs a GPU: {cuda_problem()}")
    import os
    import shutil

    from dsv4.runtime.sources import cuda_root

    copy = tmp_path / "cuda"
    shutil.copytree(cuda_root(), copy)
    text = (copy / "cast.cu").read_text()
    (copy / "cast.cu").write_text(text.replace("if (i < N) y[i]", "if (i <= N) y[i]"))
    wanted = next(n for n, line in enumerate(text.splitlines(), 1) if "if (i < N) y[i]" in line)
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli", "sanitize", "cast", "--tool", "memcheck"],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "DSV4_CUDA_ROOT": str(copy)},
    )  # fmt: skip
    assert done.returncode == 7, done.stdout + done.stderr
    assert f"cast.cu:{wanted}" in done.stdout
