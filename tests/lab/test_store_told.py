"""A store that cannot be used: what a person is told, what is still shown, what is still there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.record.store import Store
from tests.lab.planted import environment, lab

DIFF = ("kernel-diff", "cast", "-c", "tail,one,hidden", "--backend", "host", "--no-time")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a tiny file system here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def fill(disk: Path, leave_bytes: int) -> None:
    """Take all room of a disk but this."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - leave_bytes))


def paragraph(told: str, *words: str) -> None:
    """One paragraph: an error with its next step, no traceback."""
    assert "Traceback" not in told
    lines = told[told.index("error: ") :].strip().splitlines()
    assert 2 <= len(lines) <= 4, told
    assert all(line.startswith("  ") for line in lines[1:]), told
    assert [word for word in words if word not in told] == [], told


def test_a_disk_that_fills_up_during_a_run_loses_nothing(tiny_disk: Path, tmp_path: Path) -> None:
    store = ("--store", str(tiny_disk / "lab.db"))
    assert lab(tmp_path, *store, *DIFF).returncode == 0
    fill(tiny_disk, leave_bytes=48 * 1024)
    whole = ("--json", "kernel-diff", "act_quant_fp8", "cast", "--backend", "host", "--no-time")
    done = lab(tmp_path, *store, *whole)
    assert done.returncode == 2, done.stderr
    assert "the disk is full" in done.stderr and "Traceback" not in done.stderr
    document = json.loads(done.stdout)  # every case that ran is in it, also the last
    assert "records prune" in document["error"]["message"] and document["results"]
    (tiny_disk / "ballast").unlink()
    runs = json.loads(lab(tmp_path, *store, "--json", "records", "list").stdout)["runs"]
    assert [r["exit_code"] for r in runs] == [0, None]
    assert runs[0]["results"] == 3
    assert runs[1]["results"] == len(document["results"]) - 1
    assert lab(tmp_path, *store, *DIFF).returncode == 0


def test_a_full_disk_is_told_before_any_work(tiny_disk: Path, tmp_path: Path) -> None:
    fill(tiny_disk, leave_bytes=0)
    done = lab(tmp_path, "--store", str(tiny_disk / "lab.db"), *DIFF)
    assert done.returncode == 2
    paragraph(done.stderr, "disk is full", "free some space", "--store PATH")
    assert "PASS" not in done.stdout


@pytest.mark.parametrize("command", [DIFF, ("records", "list"), ("compare", "1", "1"), ("list",)])
def test_a_store_from_a_newer_version_is_told_and_left_alone(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / ".lab" / "lab.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 7")
    connection.close()
    before = path.read_bytes()
    done = lab(tmp_path, *command)
    assert done.returncode == 2
    paragraph(done.stderr, "schema version 7", "knows 1", "upgrade dsv4-lab", "--store PATH")
    assert "PASS" not in done.stdout
    assert path.read_bytes() == before


def test_a_command_that_is_killed_keeps_what_it_had_finished(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "lab.cli", "kernel-diff", "act_quant", "cast",
               "--backend", "host", "--no-time"]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    shown = 0
    for line in process.stdout:
        shown += "PASS" in line
        if shown == 3:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (run,) = json.loads(lab(tmp_path, "--json", "records", "list").stdout)["runs"]
    assert run["results"] >= 3
    assert run["exit_code"] is None
    assert "interrupted" in lab(tmp_path, "records", "list").stdout
    assert lab(tmp_path, *DIFF).returncode == 0


def test_two_commands_write_one_store_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.cli", *DIFF]
    both = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [p.wait() for p in both] == [0, 0]
    runs = json.loads(lab(tmp_path, "--json", "records", "list").stdout)["runs"]
    assert [(r["results"], r["exit_code"]) for r in runs] == [(3, 0), (3, 0)]
