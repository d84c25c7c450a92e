"""compute-sanitizer's log becomes rows; on host the check mode takes its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4.errors import DeviceError
from dsv4.runtime.device import cuda_problem
from lab.tools import sanitizer
from tests.lab.planted import lab, planted

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


WRONG = ("cast.cu", "y[i] = f32_to_bf16(x[i]);",
         "y[i] = i == 100 ? 0 : f32_to_bf16(x[i]);")  # fmt: skip


def test_on_host_a_wrong_number_is_told_beside_the_findings(tmp_path: Path) -> None:
    wrong = planted(tmp_path, *WRONG)
    done = lab(tmp_path, "--json", "sanitize", "cast", "--backend", "host", DSV4_CUDA_ROOT=wrong)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["findings"] == []
    assert {(b["kernel"], b["verdict"]) for b in document["broken"]} == {("cast_bf16", "FAIL")}
    assert document["broken"][0]["what"].startswith("y: 1 of ")
    assert document["tools"][0]["state"] == "NOT PASSED"
    assert "dsv4-lab kernel-diff cast_bf16" in done.stderr


def test_a_source_that_does_not_compile_is_told_with_its_exit_code(tmp_path: Path) -> None:
    wrong = planted(tmp_path, WRONG[0], WRONG[1], "y[i] = nonsense(x[i]);")
    done = lab(tmp_path, "--json", "sanitize", "cast", "--backend", "host", DSV4_CUDA_ROOT=wrong)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["broken"][0]["error_class"] == "CompileError"


# Stands for the tool: it watches nothing, and runs what it was given on the CPU.
_TOOL = """#!{python}
import subprocess, sys
log = next(a.partition("=")[2] for a in sys.argv if a.startswith("--log-file="))
child = sys.argv[sys.argv.index({python!r}):]
child = ["host" if a == "cuda" else a for a in child]
code = subprocess.run(child).returncode
open(log, "w").write({log!r})
sys.exit(code)
"""
_CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def under(tmp_path: Path, log: str, *fault: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, text and document of sanitize with a tool that writes this log."""
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(_TOOL.format(python=sys.executable, log=log))
    tool.chmod(0o755)
    more = {"DSV4_CUDA_ROOT": planted(tmp_path, *fault)} if fault else {}
    done = lab(tmp_path, "--json", "sanitize", "cast", "--tool", "memcheck", "--backend", "cuda",
               PATH=f"{tool.parent}:{os.environ['PATH']}", **more)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr, json.loads(done.stdout)


def test_a_case_that_fails_under_a_clean_tool_is_told_and_exits_1(tmp_path: Path) -> None:
    code, told, document = under(tmp_path, _CLEAN, *WRONG)
    assert (code, document["exit_codes"]) == (1, [1])
    assert document["findings"] == []
    assert document["tools"][0]["state"] == "NOT PASSED"
    assert "FAIL" in told and "y: 1 of " in told


def test_findings_outrank_a_failing_case_and_both_are_told(tmp_path: Path) -> None:
    code, _, document = under(tmp_path, _LOG, *WRONG)
    assert (code, document["exit_codes"]) == (7, [1, 7])
    assert [f["line"] for f in document["findings"]] == [13, 20]
    assert document["broken"]


def test_right_kernels_under_a_clean_tool_are_clean(tmp_path: Path) -> None:
    code, _, document = under(tmp_path, _CLEAN)
    assert (code, document["broken"], document["tools"][0]["state"]) == (0, [], "clean")
    assert document["tools"][0]["cases"] >= 5


def test_a_tool_that_does_not_close_is_not_clean(tmp_path: Path) -> None:
    code, told, document = under(tmp_path, "========= COMPUTE-SANITIZER\n")
    assert (code, document["tools"][0]["state"]) == (7, "INCOMPLETE")
    assert "did not close with its summary" in told


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
