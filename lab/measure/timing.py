"""How long a launch takes, and what the machine could do in that time.

On CUDA one graph holds many launches over rotating copies of the arrays, so that weights come from
memory and not from the L2 cache, and host time does not count; device events bracket its replays.
On host the wall clock brackets single calls.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """How many copies of a launch's arrays to rotate over."""
    if device.backend == "host":
        return 1
    return max(1, min(64, -(-_ROTATION_BYTES // max(1, size_bytes))))


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


@functools.lru_cache(maxsize=None)
def _roof(key: tuple[str, str], device: Any) -> float:
    size = _ROOF_BYTES if device.backend == "cuda" else _ROOF_BYTES_HOST
    source, target = device.empty((size // 8,), F64), device.empty((size // 8,), F64)
    source[...] = 1
    target[...] = 0

    def copy() -> None:
        target[...] = source

    copy()
    best = min(device.time_s(copy, 10))
    return 2 * size / best


def copy_roof(device: Device) -> float:
    """Bytes a second of a large device copy, read plus written, measured once per process."""
    return _roof((device.backend, device.name), device)


def float_or_none(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return float(value) if np.isfinite(value) else None
