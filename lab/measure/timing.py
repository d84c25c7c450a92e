"""How long a launch takes, and what the machine could do in that time.

On CUDA one graph holds many launches over rotating copies of the arrays, so that weights come from
memory and not from the L2 cache, and host time does not count; device events bracket its replays.
On host the wall clock brackets single calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4.runtime.device import Device
from dsv4.spec import F64

# Anything up to the L2 size would be read from cache; rotate over several times that.
_ROTATION_BYTES = 256 * 2**20
_ROOF_BYTES = 1 << 30
_ROOF_BYTES_HOST = 1 << 26


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one launch over repeated samples.

    cold: the arrays were rotated over more memory than the L2 cache holds.
    """

    samples_s: tuple[float, ...]
    cold: bool

    @property
    def median_s(self) -> float:
        """The median sample."""
        return statistics.median(self.samples_s)

    @property
    def noise(self) -> float:
        """Half the distance between the quartiles over the median."""
        if len(self.samples_s) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4)
        return (high - low) / 2 / self.median_s


def copies_for(size_bytes: int, device: Device) -> int:
    """How many copies of a launch's arrays to rotate over.

    Work too small to leave the cache within 64 copies is timed warm, on one.
    """
    if device.backend == "host":
        return 1
    copies = -(-_ROTATION_BYTES // max(1, size_bytes))
    return copies if copies <= 64 else 1


def time_launches(
    device: Device, launches: Sequence[Callable[[], None]], size_bytes: int, *, samples: int = 15
) -> Timing:
    """Time one launch of a set that does the same work on different copies of its arrays."""
    if device.backend == "host":
        launches[0]()
        return Timing(tuple(device.time_s(launches[0], max(1, samples // 5))), cold=False)
    # Short kernels need many launches a replay, or the events dominate.
    rounds = max(1, 64 // len(launches))
    with device.capture() as graph:
        for _ in range(rounds):
            for launch in launches:
                launch()
    count = rounds * len(launches)
    for _ in range(2):
        graph.replay()
    times = device.time_s(graph.replay, samples)
    cold = size_bytes * len(launches) >= _ROTATION_BYTES
    return Timing(tuple(t / count for t in times), cold)


_ROOFS: dict[tuple[str, str], float] = {}


def copy_roof(device: Device) -> float:
    """Bytes a second of a large device copy, read plus written, measured once per process."""
    key = (device.backend, device.name)
    if key not in _ROOFS:
        _ROOFS[key] = _measure_copy(device)
    return _ROOFS[key]


def _measure_copy(device: Device) -> float:
    size = _ROOF_BYTES if device.backend == "cuda" else _ROOF_BYTES_HOST
    source, target = device.empty((size // 8,), F64), device.empty((size // 8,), F64)
    source[...] = 1
    target[...] = 0

    def copy() -> None:
        target[...] = source

    copy()
    best = min(device.time_s(copy, 10))
    return 2 * size / best


class DeviceTimer:
    """A timer for pytest-benchmark that reports device time per launch.

    On CUDA `work` replays one graph of many launches and calling the timer gives event time since
    `start`, divided by the number of launches; on host it is the wall clock around one launch.
    """

    def __init__(self, device: Device, launches: Sequence[Callable[[], None]]) -> None:
        """Capture the graph where there is one."""
        self._device = device
        self.work: Callable[[], None] = launches[0]
        self.launches = 1
        if device.backend == "cuda":
            rounds = max(1, 64 // len(launches))
            with device.capture() as graph:
                for _ in range(rounds):
                    for launch in launches:
                        launch()
            self.work = graph.replay
            self.launches = rounds * len(launches)
        self._copies = len(launches)
        self._begin: Any = None

    def cold(self, size_bytes: int) -> bool:
        """Whether the rotated arrays exceed the L2 cache several times."""
        return self._device.backend == "cuda" and size_bytes * self._copies >= _ROTATION_BYTES

    def start(self) -> None:
        """Begin a round: times count from here, so that a float32 millisecond stays precise."""
        if self._device.backend == "cuda":
            self._begin = self._event()

    def __call__(self) -> float:
        """Seconds since `start`, per launch."""
        if self._device.backend == "host":
            return time.perf_counter()
        if self._begin is None:
            self.start()
        now = self._event()
        elapsed_ms = self._device.xp.cuda.get_elapsed_time(self._begin, now)
        return float(elapsed_ms) * 1e-3 / self.launches

    def _event(self) -> Any:
        event = self._device.xp.cuda.Event()
        event.record()
        event.synchronize()
        return event
