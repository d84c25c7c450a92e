"""kernel-diff over several processes: every case once, a dead worker costs one case, one store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4 import registry
from dsv4.runtime.device import cuda_problem
from dsv4.runtime.hostdevice import HostDevice
from lab import workers
from lab.cases import Case
from lab.cases.fills import normal
from lab.result import CaseResult
from lab.run import RunOptions
from lab.session import Work
from tests.lab.planted import environment, lab, planted

pytest.importorskip("execnet")
OPTIONS = RunOptions(time=False, relaunch=1)


def die(rng: np.random.Generator, shape: tuple[int, ...], *facts: Any) -> np.ndarray:
    """A fill that ends the process it is called in, as a crashing kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return normal()(rng, shape, *facts)


def some_work() -> Work:
    """Eight cases, the third of which kills its worker."""
    spec = registry.spec("cast_bf16")
    return [(spec, Case(f"n{i}", N=10 + i, x=die if i == 2 else normal())) for i in range(8)]


def good_work() -> Work:
    """The seven that end."""
    return [pair for i, pair in enumerate(some_work()) if i != 2]


def spread(again: Callable[[], Work], count: int, **more: Any) -> list[CaseResult]:
    """The results of work on that many workers."""
    job = workers.Job(again, OPTIONS)
    places = [HostDevice] * count
    return list(workers.run_workers(again(), HostDevice(), job, places, **more))


@pytest.mark.parametrize("count", [1, 3])
def test_every_case_is_run_once_however_many_workers(count: int) -> None:
    found = spread(good_work, count)
    assert sorted(r.case for r in found) == sorted(c.name for _, c in good_work())
    assert all(r.verdict == "PASS" for r in found)


def test_a_dead_worker_costs_its_case_and_is_replaced() -> None:
    found = {r.case: r for r in spread(some_work, 2)}
    assert len(found) == 8
    assert found["n2"].verdict == "ERROR"
    assert "died" in found["n2"].error
    assert all(r.verdict == "PASS" for name, r in found.items() if name != "n2")


def test_fail_fast_ends_the_workers() -> None:
    found = spread(some_work, 1, fail_fast=True)
    assert [r.case for r in found] == ["n0", "n1", "n2"]


def test_results_land_in_one_store_and_are_the_same_as_alone(tmp_path: Path) -> None:
    case = ("--json", "kernel-diff", "cast", "act_quant_fp8", "--backend", "host", "--no-time")
    alone = json.loads(lab(tmp_path, *case).stdout)
    done = lab(tmp_path, *case, "--workers", "2")
    assert done.returncode == 0, done.stderr
    spread_out = json.loads(done.stdout)
    assert spread_out["run"] == 2
    assert spread_out["summary"] == alone["summary"]

    def digests(document: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {(r["kernel"], r["case"], r["output_digest"]) for r in document["results"]}

    assert digests(spread_out) == digests(alone)
    listed = json.loads(lab(tmp_path, "--json", "records", "list").stdout)
    assert [r["results"] for r in listed["runs"]] == [len(alone["results"])] * 2


def test_ctrl_c_ends_the_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.cli", "kernel-diff", "attention", "router", "--workers",
               "2", "--backend", "host", "--level", "full"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    shown = ""
    while "attention" not in shown:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        shown += line
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished results are kept" in told
    listed = json.loads(lab(tmp_path, "--json", "records", "list").stdout)
    assert listed["runs"][0]["results"] >= 1
    assert not children_of(process.pid)


def children_of(pid: int) -> list[str]:
    """Python processes of the session that the command led; a compiler ends by itself soon."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == pid and fields[0] != "Z" and name.startswith("python"):
            found.append(stat.parent.name)
    return found


def test_a_missing_ray_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        done = lab(tmp_path, "kernel-diff", "cast", "--ray", "10.0.0.1:1", "--backend", "host")
        assert done.returncode == 8
        assert "dsv4-lab[ray]" in done.stderr
        return
    pytest.skip("ray is installed here")


def test_ray_runs_every_case_and_a_dead_worker_costs_one() -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'dsv4-lab[ray]'")
    job = workers.Job(some_work, OPTIONS)
    results = workers.run_ray(some_work(), HostDevice(), job, HostDevice, "local")
    found = {r.case: r for r in results}
    assert len(found) == 8
    assert (found["n2"].verdict, "died" in found["n2"].error) == ("ERROR", True)
    assert all(r.verdict == "PASS" for name, r in found.items() if name != "n2")


def test_ray_runs_the_sources_that_the_caller_chose(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'dsv4-lab[ray]'")
    wrong = planted(tmp_path, "cast.cu", "y[i] = f32_to_bf16(x[i]);", "y[i] = 0;")
    done = lab(tmp_path, "--json", "kernel-diff", "cast", "-c", "tail,one", "--ray", "local",
               "--backend", "host", DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["summary"]["fail"]) == (1, 2)


def test_an_address_without_a_ray_cluster_is_told_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'dsv4-lab[ray]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = lab(tmp_path, "kernel-diff", "cast", "--ray", address, "--backend", "host")
    assert done.returncode == 8
    assert f"--ray {address}: the cluster does not answer" in done.stderr


@pytest.mark.gpu
def test_workers_on_one_gpu_take_turns_and_still_time(tmp_path: Path) -> None:
    if cuda_problem() is not None:
        pytest.skip(f"needs a GPU: {cuda_problem()}")
    done = lab(tmp_path, "--json", "kernel-diff", "cast", "--backend", "cuda", "--workers", "3")
    document = json.loads(done.stdout)
    assert document["summary"]["pass"] == document["summary"]["cases"] > 3
    assert all(row["time_s"] > 0 for row in document["results"])
