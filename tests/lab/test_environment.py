"""The environment in every record: complete, quick, and only looking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.record import environment
from lab.record.environment import capture, summary_line
from lab.record.nvidia_smi import gpu_settings_and_state

ROOT = Path(__file__).parents[2]

# What a driver of 2025 prints for one card, with a setting that the card does not have.
_FAKE_SMI = """#!/bin/sh
echo "$0 $*" >> "$SMI_LOG"
echo "NVIDIA H200, GPU-1, 580.159.03, Enabled, Enabled, [N/A], 700.00, 1980, 3201, \
1200, 3201, 76.51, 31, 0x0000000000000000"
"""


def git(folder: Path, *arguments: str) -> None:
    """Run git in a scratch repository."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_capture_is_json_and_names_the_software() -> None:
    env = json.loads(json.dumps(capture()))
    assert env["python"] == ".".join(map(str, sys.version_info[:3]))
    assert env["numpy"]["version"]
    assert env["packages"]["click"]
    assert {"os", "cpu", "compiler", "git", "state", "variables"} <= set(env)


# Processor time, children included: what wall time is on an idle machine.
def test_a_capture_on_the_host_is_quick_and_imports_no_cupy() -> None:
    program = (
        "import os, sys, lab.record.environment as e\n"
        "begin = sum(os.times()[:4]); e.capture(); took = sum(os.times()[:4]) - begin\n"
        "assert 'cupy' not in sys.modules\n"
        "print(took)"
    )
    command = [sys.executable, "-c", program]
    times = [
        float(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.3


def test_switches_are_recorded_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_DENSE_ARM", "bf16")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    variables = capture()["variables"]
    assert variables["DSV4_DENSE_ARM"] == "bf16"
    assert "SECRET_TOKEN" not in variables


def test_a_missing_compiler_is_a_fact_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_CXX", "no-such-compiler")
    compiler = capture()["compiler"]
    assert compiler["version"] is None
    assert "no-such-compiler" in compiler["problem"]


def test_edits_and_new_files_change_the_digest_and_other_folders_do_not(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "a.cu").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = environment._git(tmp_path)
    assert clean is not None and clean["dirty"] is False and clean["diff_digest"] is None
    (tmp_path / "notes.txt").write_text("mine")
    assert environment._git(tmp_path) == clean
    (tmp_path / "cuda" / "a.cu").write_text("two")
    edited = environment._git(tmp_path)
    (tmp_path / "cuda" / "b.cu").write_text("new")
    added = environment._git(tmp_path)
    assert edited is not None and added is not None
    assert edited["dirty"] and edited["diff_digest"] != added["diff_digest"]


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert environment._git(tmp_path / "nowhere") is None


def test_nvidia_smi_is_asked_once_and_only_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(_FAKE_SMI)
    program.chmod(0o755)
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SMI_LOG", str(log))

    class FakeDevice:
        backend, name, arch, index = "cuda", "NVIDIA H200", "sm_90a", 0

    monkeypatch.setattr(environment, "_cuda", lambda index: {"cupy": "14.2.0", "nvrtc": "12.9"})
    env = capture(FakeDevice())
    asked = log.read_text().splitlines()
    assert len(asked) == 1 and "--query-gpu=" in asked[0]
    assert env["gpu_settings"]["driver"] == "580.159.03"
    assert env["gpu_settings"]["mig"] is None
    assert env["state"] == {
        "sm_mhz": 1200.0,
        "memory_mhz": 3201.0,
        "power_w": 76.51,
        "temperature_c": 31.0,
        "throttle_reasons": "0x0000000000000000",
    }
    line = summary_line(env)
    assert line.startswith("NVIDIA H200 sm_90a  driver 580.159.03  nvrtc 12.9  cupy 14.2.0")


def test_a_failing_nvidia_smi_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_settings_and_state() == (None, None)


def test_the_summary_of_a_host_run_names_compiler_and_commit() -> None:
    env = capture()
    env["git"] = {"commit": "4f1c2ab9", "dirty": True}
    env["compiler"] = {"command": "g++", "version": "g++ 12.2"}
    assert "g++ 12.2" in summary_line(env)
    assert summary_line(env).endswith("commit 4f1c2ab+dirty")
