"""Named brackets around parts of a step: times of their own and in all, and NVTX ranges."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsv4.runtime.device import Device


@dataclass(slots=True)
class PhaseTime:
    """What was measured between entering and leaving a phase of one name."""

    calls: int = 0
    inclusive_s: float = 0.0
    exclusive_s: float = 0.0


@dataclass(slots=True)
class _Open:
    name: str
    begin_s: float
    inside_s: float = 0.0


@dataclass(slots=True)
class _Times:
    by_name: dict[str, PhaseTime] = field(default_factory=dict)
    open: list[_Open] = field(default_factory=list)
    synchronised: bool = False


class _Local(threading.local):
    def __init__(self) -> None:
        self.times = _Times()


_local = _Local()


@functools.cache
def enabled() -> bool:
    """Whether DSV4_PROFILE asks for times or marks; read once in a process."""
    return (os.environ.get("DSV4_PROFILE") or "off") != "off"


def reset() -> None:
    """Forget what this thread measured."""
    _local.times = _Times()


def times() -> dict[str, PhaseTime]:
    """What this thread measured since `reset`, by name."""
    return _local.times.by_name


@contextlib.contextmanager
def phase(name: str, device: Device | None = None, *, profile: str = "off") -> Iterator[None]:
    """A bracket of that name; brackets nest. Does nothing when the profile is off.

    profile "sync" waits for the device at the end, so that its time is counted here; "nvtx" marks
    a range for a profiler and adds no wait; "both" does both.
    """
    if profile == "off":
        yield
        return
    measured, marked = profile in ("sync", "both"), profile in ("nvtx", "both")
    held = _local.times
    frame = _Open(name, time.perf_counter())
    held.open.append(frame)
    with _range(name, device) if marked else contextlib.nullcontext():
        try:
            yield
            if measured and device is not None:
                device.synchronize()
        finally:
            held.open.pop()
            spent = time.perf_counter() - frame.begin_s
            held.synchronised |= measured
            total = held.by_name.setdefault(name, PhaseTime())
            total.calls += 1
            total.inclusive_s += spent
            total.exclusive_s += spent - frame.inside_s
            if held.open:
                held.open[-1].inside_s += spent


def report(tag: str, rounds: int, plain_step_s: float = 0.0) -> str:
    """A table of the phases, the longest of its own first, per round.

    plain_step_s: the time of a plain step, in units of which times are given too; 0 omits that.
    """
    held = _local.times
    rows = sorted(held.by_name.items(), key=lambda item: -item[1].exclusive_s)
    width = max([len(name) for name, _ in rows], default=5)
    unit = "  of a step" if plain_step_s else ""
    how = "waits at the end of every phase" if held.synchronised else "host time, no waits"
    lines = [
        f"{tag}: {rounds} rounds, {how}",
        f"{'phase':{width}}  own us  in all us  calls{unit}",
    ]
    for name, t in rows:
        own, whole = t.exclusive_s / rounds, t.inclusive_s / rounds
        share = f"  {own / plain_step_s:.3f}" if plain_step_s else ""
        lines.append(
            f"{name:{width}}  {1e6 * own:6.0f}  {1e6 * whole:9.0f}  {t.calls / rounds:5.1f}{share}"
        )
    lines.append(f"{'sum':{width}}  {1e6 * sum(t.exclusive_s for _, t in rows) / rounds:6.0f}")
    return "\n".join(lines)


@contextlib.contextmanager
def _range(name: str, device: Device | None) -> Iterator[None]:
    if device is None or device.backend != "cuda":
        yield
        return
    from cupy.cuda import nvtx

    nvtx.RangePush(name)
    try:
        yield
    finally:
        nvtx.RangePop()
