"""A model over processes: the bytes of one process, and an end for every fault of another one."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsv4.engine.engine import Engine
from lab import testing
from lab.minted import model_of
from tests.distributed.ends import free_port
from tests.distributed.rank import MAX_SEQ, everything
from tests.goldens import golden_folder

ROOT = Path(__file__).resolve().parents[2]
TINY = str(golden_folder("tiny-s"))
NEXTN = "mint:tiny,layout=nextn,seed=5,agree=0.8"
PEER = 9
# How long a test waits for what has to happen at once; nothing is expected to take so long.
LIMIT_S = 240.0

Process = subprocess.Popen[str]


@contextlib.contextmanager
def started(*commands: Sequence[Any]) -> Iterator[list[Process]]:
    """A process for each command; none of them outlives the test."""
    processes: list[Process] = []
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", *map(str, command)], cwd=ROOT, env=environment,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def ranks(model: str, world: int, job: str, *switches: str) -> list[list[Any]]:
    """The command of every rank."""
    at = f"127.0.0.1:{free_port()}"
    return [
        ["tests.distributed.rank", model, rank, world, at, job, *switches] for rank in range(world)
    ]


def generating(at: str, rank: int, *more: Any) -> list[Any]:
    """The command line of a rank of two."""
    return [
        "lab.cli", "generate", TINY, "--ids", "1,2,3", "--backend", "host", "--world", 2,
        "--rank", rank, "--rendezvous", at, "--max-seq", 60, *more,
    ]  # fmt: skip


@functools.cache
def alone(model: str, drafter: str) -> dict[str, Any]:
    """What one process computes."""
    engine = Engine.load(model_of(model), (0,), backend="host", max_seq=MAX_SEQ, drafter=drafter)
    return json.loads(json.dumps(everything(engine)))


@pytest.mark.parametrize(
    ("model", "world", "switches"),
    [
        (TINY, 2, ("drafter=dspark", "split_at=2")),
        (TINY, 3, ("drafter=dspark", "split_at=1,2", "graphs=on")),
        (NEXTN, 2, ("drafter=mtp",)),
    ],
    ids=["two", "three-replayed", "next-token"],
)
def test_all_ranks_have_the_bytes_of_one_process(
    model: str, world: int, switches: Sequence[str]
) -> None:
    want = alone(model, switches[0].removeprefix("drafter="))
    with started(*ranks(model, world, "everything", *switches)) as processes:
        ends = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, ends
    found = [json.loads(out) for out, _ in ends]
    caches: dict[str, str] = {}
    for made in found:
        own = made.pop("caches")
        assert own and not caches.keys() & own.keys()
        caches |= own
        assert made == {name: value for name, value in want.items() if name != "caches"}
    assert caches == want["caches"]


def left(process: Process) -> tuple[int, str]:
    """(exit code, errors) of a process that is expected to leave by itself."""
    _, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, errors


def after_a_step(process: Process) -> None:
    """Wait until a process is in the middle of its steps."""
    assert process.stdout is not None and process.stdout.readline() == "step\n"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_process_killed_in_a_round_ends_all_others(victim: int) -> None:
    with started(*ranks(TINY, 3, "100")) as processes:
        after_a_step(processes[victim])
        processes[victim].kill()
        survivors = [p for p in processes if p is not processes[victim]]
        for code, errors in map(left, survivors):
            assert code == PEER and "PeerLost" in errors, errors
            assert f"rank {victim}" in errors


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_stops_is_given_up_after_the_set_time(victim: int) -> None:
    with started(*ranks(TINY, 2, "5")) as processes:
        after_a_step(processes[victim])
        processes[victim].send_signal(signal.SIGSTOP)
        code, errors = left(processes[1 - victim])
        assert code == PEER and "PeerSlow" in errors and "within 5 s" in errors, errors


def test_the_survivor_of_a_command_says_who_is_gone_and_leaves_with_9() -> None:
    at = f"127.0.0.1:{free_port()}"
    commands = [generating(at, rank, "-n", 57, "--peer-timeout", 100) for rank in (0, 1)]
    with started(*commands) as processes:
        assert processes[0].stdout is not None and processes[0].stdout.read(1)
        processes[1].kill()
        code, errors = left(processes[0])
    assert code == PEER and "rank 1" in errors and "that process is gone" in errors
    assert "Traceback" not in errors and "start all ranks again" in errors


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("-n", 5), "request.count: 5 there, 4 here"),
        (("-n", 4, "--arm", "dots_arm=f64"), "arms.dots_f32: False there, True here"),
        (("-n", 4, "--max-seq", 40), "max_seq: 40 there, 60 here"),
    ],
    ids=["request", "arms", "room"],
)
def test_a_rank_with_other_arguments_ends_the_run_by_name(more: Sequence[Any], says: str) -> None:
    at = f"127.0.0.1:{free_port()}"
    with started(generating(at, 0, "-n", 4), generating(at, 1, *more)) as processes:
        ends = [left(process) for process in processes]
    assert [code for code, _ in ends] == [PEER, PEER], ends
    assert says in ends[0][1] and says in ends[1][1], ends


def test_a_rank_with_another_checkpoint_ends_the_run() -> None:
    at = f"127.0.0.1:{free_port()}"
    minted = [f"mint:tiny,seed={seed}" for seed in (1, 2)]
    commands = [
        [model if word == TINY else word for word in generating(at, rank)]
        for rank, model in enumerate(minted)
    ]
    with started(*commands) as processes:
        ends = [left(process) for process in processes]
    assert [code for code, _ in ends] == [PEER, PEER], ends
    assert "checkpoint: " in ends[0][1] and "config: " not in ends[0][1]


def test_a_stranger_at_the_door_ends_the_wait_of_a_command() -> None:
    port = free_port()
    with started(generating(f"127.0.0.1:{port}", 0)) as (first,):
        while first.poll() is None:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                    connection.sendall(b"\x16\x03\x01 hello")
                    connection.recv(100)
                break
        code, errors = left(first)
    assert code == PEER and "no process of this program" in errors, errors


def test_half_a_seat_is_refused() -> None:
    with started(["lab.cli", "generate", TINY, "--ids", "1", "--rank", 0]) as (process,):
        code, errors = left(process)
    assert code == 2 and "--rank, --world and --rendezvous" in errors


@pytest.mark.parametrize(
    ("transport", "devices"),
    [
        pytest.param("sockets", (0, 0), marks=pytest.mark.gpu),
        pytest.param("nccl", (0, 1), marks=pytest.mark.gpu2),
    ],
    ids=["one-card", "two-cards"],
)
def test_processes_on_gpus_have_the_bytes_of_one(transport: str, devices: Sequence[int]) -> None:
    if testing.cuda().xp.cuda.runtime.getDeviceCount() <= max(devices):
        pytest.skip("needs two CUDA devices")
    at = f"127.0.0.1:{free_port()}"
    more = ("--ids", "4,5,6,7", "--arm", "split_at=2", "--json")
    for drafting in ((), ("--spec",)):
        seats = [
            [*generating(at, rank, *more, *drafting, "--transport", transport), "--devices", device]
            for rank, device in enumerate(devices)
        ]
        one = ["lab.cli", "generate", TINY, "--ids", "1,2,3", "--ids", "4,5,6,7", "--json"]
        commands = [[w if w != "host" else "cuda" for w in seat] for seat in seats]
        with started([*one, *drafting, "--backend", "cuda"], *commands) as processes:
            outs = [process.communicate(timeout=LIMIT_S) for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], outs
        made = [json.loads(out)["streams"] for out, _ in outs]
        assert made[0] == made[1] == made[2]


@pytest.mark.gpu2
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_under_nccl_ends_the_other_one(victim: int) -> None:
    if testing.cuda().xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")
    at = f"127.0.0.1:{free_port()}"
    seats = [
        [*generating(at, rank, "-n", 57, "--transport", "nccl"), "--devices", rank]
        for rank in (0, 1)
    ]
    commands = [[w if w != "host" else "cuda" for w in seat] for seat in seats]
    with started(*commands) as processes:
        assert processes[0].stdout is not None and processes[0].stdout.read(1)
        processes[victim].kill()
        code, errors = left(processes[1 - victim])
    assert code == PEER and f"rank {victim}" in errors
