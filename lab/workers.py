"""kernel-diff over several processes or hosts: one worker a device, results in one stream.

A worker takes the next case when it is free. One that dies costs the case it had: the case becomes
an ERROR, a new worker takes its place, the rest goes on. Only the caller writes to the store.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import DeviceError, LaunchError
from dsv4.runtime.device import Device
from lab.result import PASS, CaseResult
from lab.run import RunOptions
from lab.session import Work, error_result, run

_ROOT = Path(__file__).resolve().parents[1]
_GRACE_S = 2.0
_ANSWER_S = 5.0
_SERVE = "from lab.workers import serve\nserve(channel)\n"
Reopen = Callable[[], Device]


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker is told once: how to make the work and the options of each case."""

    again: Callable[[], Work]
    options: RunOptions


def run_workers(
    work: Work,
    device: Device,
    job: Job,
    reopen: Sequence[Reopen],
    *,
    fail_fast: bool = False,
) -> Iterator[CaseResult]:
    """Results as they come, from one process for each element of `reopen`.

    device: the caller's own, which names where a crashed case ran. Errors: DeviceError without
    execnet.
    """
    try:
        import execnet
    except ImportError as error:
        raise DeviceError(
            f"--workers needs execnet, and it cannot be loaded ({error})\n"
            "  install the extra: pip install 'dsv4-lab[workers]'"
        ) from None
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(work)):
        waiting.put(index)
    done: queue.SimpleQueue[CaseResult | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    group = execnet.Group()
    group.set_execmodel("thread")

    def serve_one(own: Reopen) -> None:
        gateway = None
        try:
            while not stop.is_set():
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                gateway, result = _one(group, gateway, own, job, index)
                if result is None:
                    spec, case = work[index]
                    crash = LaunchError(
                        "the worker that ran this case died; run it alone under --mode check"
                    )
                    result = error_result(spec, case, device, job.options.seed, crash)
                done.put(result)
        except BaseException as error:  # told by the caller's thread
            done.put(error)
        finally:
            done.put(None)

    threads = [threading.Thread(target=serve_one, args=(r,), daemon=True) for r in reopen]
    for thread in threads:
        thread.start()
    try:
        yield from _collect(done, len(threads), fail_fast)
    finally:
        stop.set()
        group.terminate(timeout=_GRACE_S)


def serve(channel: Any) -> None:
    """A worker's loop: the job first, then case numbers; one pickled result for each."""
    job, reopen = pickle.loads(channel.receive())
    work, device = job.again(), reopen()
    for index in channel:
        result = next(run([work[index]], device, job.options))
        channel.send(pickle.dumps(result))


def run_ray(
    work: Work, device: Device, job: Job, reopen: Reopen, address: str, *, fail_fast: bool = False
) -> Iterator[CaseResult]:
    """Results as they come from a Ray cluster, one GPU for each case where the backend is cuda.

    Every host has this checkout, and the folders that DSV4_ variables name, at the same paths.
    Errors: DeviceError without ray or without that cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise DeviceError(
            f"--ray needs ray, and it cannot be loaded ({error})\n"
            "  install the extra: pip install 'dsv4-lab[ray]'"
        ) from None
    _require_head(address)
    try:
        # Its workers are no children of this process, so sources and switches must be told to them.
        told = {name: value for name, value in os.environ.items() if name.startswith("DSV4_")}
        environment = {"env_vars": {**told, "PYTHONPATH": str(_ROOT)}}
        ray.init(address=address, runtime_env=environment, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_head(address, error) from None
    gpus = 1 if device.backend == "cuda" else 0
    # Never run twice: a crash is a finding.
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run_nth)
    payload = pickle.dumps((job, reopen))
    places = {remote.remote(payload, index): index for index in range(len(work))}
    try:
        while places:
            (ready,), _ = ray.wait(list(places), num_returns=1)
            spec, case = work[places.pop(ready)]
            try:
                result: CaseResult = pickle.loads(ray.get(ready))
            except ray.exceptions.RayError as error:
                crash = LaunchError(f"the worker that ran this case died ({type(error).__name__})")
                result = error_result(spec, case, device, job.options.seed, crash)
            yield result
            if fail_fast and result.verdict != PASS:
                return
    finally:
        ray.shutdown()


def _require_head(address: str) -> None:
    """Refuse an address that nobody listens at; Ray itself would go on asking for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _no_head(address, error) from None


def _no_head(address: str, error: Exception) -> DeviceError:
    return DeviceError(
        f"--ray {address}: the cluster does not answer ({error})\n"
        "  give the address of a running head, such as 10.0.0.1:6379, or local; where it asks for a"
        " token, set Ray's RAY_AUTH_MODE and what belongs to it as on the head"
    )


def _run_nth(payload: bytes, index: int) -> bytes:
    job, reopen = pickle.loads(payload)
    return pickle.dumps(next(run([job.again()[index]], reopen(), job.options)))


def _one(
    group: Any, gateway: Any, reopen: Reopen, job: Job, index: int
) -> tuple[Any, CaseResult | None]:
    """One case on a worker, made when there is none; (worker or None, result or None)."""
    worker = gateway or _start(group, reopen, job)
    gate, channel = worker
    try:
        channel.send(index)
        return worker, pickle.loads(channel.receive())
    except (EOFError, OSError):
        with contextlib.suppress(Exception):
            gate.exit()
        return None, None


def _start(group: Any, reopen: Reopen, job: Job) -> tuple[Any, Any]:
    gate = group.makegateway(f"popen//python={sys.executable}//env:PYTHONPATH={_ROOT}")
    channel = gate.remote_exec(_SERVE)
    channel.send(pickle.dumps((job, reopen)))
    return gate, channel


def _collect(done: Any, threads: int, fail_fast: bool) -> Iterator[CaseResult]:
    while threads:
        found = done.get()
        if found is None:
            threads -= 1
        elif isinstance(found, BaseException):
            raise found
        else:
            yield found
            if fail_fast and found.verdict != PASS:
                return
