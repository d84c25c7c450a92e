"""Samples: turns, rotation, order statistics; and graphs on a device that counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dsv4.runtime.hostdevice import HostDevice
from lab.bench.clocks import NO_CLOCK, Clock, read_mhz
from lab.bench.roofs import measure_roofs
from lab.bench.sampling import (
    ROTATION_BYTES,
    copies_for,
    interval_of,
    repeated,
    replayed,
    spread,
    turn_by_turn,
)
from lab.measure.timing import Timing

MB = 2**20


@dataclass
class CountingDevice:
    """A stand-in for a GPU: captures calls, replays them, and says that each takes a second."""

    backend: str = "cuda"
    calls: list[str] = field(default_factory=list)
    captured: list[Callable[[], None]] | None = None

    @contextlib.contextmanager
    def capture(self) -> Iterator[Any]:
        graph = _Graph(self)
        before = len(self.calls)
        yield graph
        graph.recorded = self.calls[before:]
        del self.calls[before:]

    def time_s(self, work: Callable[[], None], repeats: int) -> list[float]:
        before = len(self.calls)
        work()
        return [float(len(self.calls) - before)] * repeats

    def launch(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


@dataclass
class _Graph:
    device: CountingDevice
    recorded: list[str] = field(default_factory=list)

    def replay(self) -> None:
        self.device.calls += self.recorded


@pytest.mark.parametrize(
    ("size", "copies"),
    [(256 * MB, 1), (300 * MB, 1), (255 * MB, 2), (32 * MB, 8), (2 * MB, 128), (MB // 2, 512)],
)
def test_copies_cover_the_rotation(size: int, copies: int) -> None:
    assert copies_for(size, size, "cuda") == copies
    assert size * copies >= ROTATION_BYTES


def test_work_that_no_number_of_copies_makes_cold_is_timed_on_one() -> None:
    assert copies_for(1000, 1000, "cuda") == 1
    assert copies_for(0, 0, "cuda") == 1
    # What is read is little of what is held: 64 copies would fill the card.
    assert copies_for(4 * MB, 1 << 30, "cuda") == 1
    assert copies_for(32 * MB, 32 * MB, "host") == 1


def test_a_graph_holds_whole_rotations_and_many_launches() -> None:
    device = CountingDevice()
    launches = [device.launch(str(n)) for n in range(24)]
    side = repeated(device, launches, 12 * MB)  # type: ignore[arg-type]
    assert side.launches == 144 and side.cold
    device.calls.clear()
    side.replay()
    assert device.calls == [str(n) for n in range(24)] * 6


def test_a_sample_is_one_launch_of_a_replay_behind_an_uncounted_one() -> None:
    device = CountingDevice()
    side = repeated(device, [device.launch("a")], MB, at_least=10)  # type: ignore[arg-type]
    device.calls.clear()
    assert side.sample() == 1.0
    assert len(device.calls) == 20 and not side.cold


def test_sides_take_turns_and_each_starts_uncounted() -> None:
    device = HostDevice()
    seen: list[str] = []
    sides = [replayed(device, lambda n=n: seen.append(n), 1, 0) for n in "ab"]  # type: ignore[misc]
    timings = turn_by_turn(sides, 3)
    assert seen == ["a", "b"] * 4
    assert [len(t.samples_s) for t in timings] == [3, 3] and not any(t.cold for t in timings)


def test_order_statistics_of_five_samples_by_hand() -> None:
    timing = Timing((5.0, 1.0, 2.0, 9.0, 3.0), cold=True)
    assert spread(timing) == {"n": 5, "min": 1.0, "q1": 2.0, "median": 3.0, "q3": 5.0, "max": 9.0}
    interval = interval_of(timing)
    assert (interval.min_s, interval.median_s, interval.q3_s, interval.n) == (1.0, 3.0, 5.0, 5)


def test_a_cpu_has_no_roof_and_no_clock() -> None:
    assert measure_roofs(HostDevice()) is None
    assert read_mhz(HostDevice()) == (None, "none")
    assert NO_CLOCK.steady_mhz is None
    assert Clock(1980.0, 1900.0, "nvml").steady_mhz == 1940.0
