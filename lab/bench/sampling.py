"""Samples of launches: one or several sides, turn by turn, each by the rules of measurement.

On CUDA a sample is one replay of a graph of many launches between two device events. A replay that
is not counted goes before it, so that the counted one is waiting when the device gets to it. On
host a sample is the wall clock around one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4.runtime.device import Device
from lab.measure.timing import Timing
from lab.record.sides import Interval

ROTATION_BYTES: Final = 256 * 2**20
"""Distinct bytes that pass between two uses of the same ones."""
_MOST_COPIES: Final = 512
_MOST_MEMORY_BYTES: Final = 12 << 30
_FEWEST_LAUNCHES: Final = 128

HOW_CUDA: Final = "device events around graph replays of many launches"
HOW_HOST: Final = "wall clock of single launches on this machine's CPU; no measure of a GPU"


@dataclass(frozen=True, slots=True)
class Repeated:
    """Launches that do the same again, ready to be sampled.

    replay: runs all of them. launches: how many. cold: every use of a weight is 256 MB after the
    one before. sample: seconds of one launch, the mean over one replay.
    """

    replay: Callable[[], None]
    launches: int
    cold: bool
    sample: Callable[[], float]


def copies_for(size_bytes: int, held_bytes: int, backend: str) -> int:
    """Over how many copies of its arrays a launch rotates: one where no number would be cold.

    size_bytes: what a launch must move. held_bytes: what a copy takes of memory.
    """
    if backend == "host":
        return 1
    wanted = -(-ROTATION_BYTES // max(1, size_bytes))
    fits = wanted <= _MOST_COPIES and wanted * held_bytes <= _MOST_MEMORY_BYTES
    return wanted if fits else 1


def repeated(
    device: Device,
    launches: Sequence[Callable[[], None]],
    size_bytes: int,
    *,
    at_least: int = _FEWEST_LAUNCHES,
) -> Repeated:
    """The launches as one graph, again and again until it has many; the first alone on host."""
    if device.backend == "host":
        return Repeated(launches[0], 1, False, lambda: device.time_s(launches[0], 1)[0])
    # Code is loaded at a kernel's first launch, which a capture forbids.
    launches[0]()
    rounds = max(1, -(-at_least // len(launches)))
    with device.capture() as graph:
        for _ in range(rounds):
            for launch in launches:
                launch()
    return replayed(device, graph.replay, rounds * len(launches), size_bytes * len(launches))


def replayed(
    device: Device, replay: Callable[[], None], launches: int, rotated_bytes: int
) -> Repeated:
    """A replay of that many launches as something to be sampled."""
    cold = device.backend == "cuda" and rotated_bytes >= ROTATION_BYTES

    def sample() -> float:
        if device.backend == "cuda":
            replay()
        return device.time_s(replay, 1)[0] / launches

    return Repeated(replay, launches, cold, sample)


def turn_by_turn(sides: Sequence[Repeated], samples: int) -> list[Timing]:
    """The timing of every side, sampled in turns: A, B, A, B; each once before, uncounted."""
    for side in sides:
        side.sample()
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(samples):
        for kept, side in zip(found, sides, strict=True):
            kept.append(side.sample())
    return [Timing(tuple(kept), side.cold) for kept, side in zip(found, sides, strict=True)]


def interval_of(timing: Timing, sm_mhz: float | None = None) -> Interval:
    """The interval that verdicts of time compare."""
    ordered = sorted(timing.samples_s)
    last = len(ordered) - 1
    return Interval(ordered[0], timing.median_s, ordered[round(last * 0.75)], len(ordered), sm_mhz)


def spread(timing: Timing) -> dict[str, Any]:
    """Order statistics of the samples in seconds, quartiles by the nearest rank."""
    ordered = sorted(timing.samples_s)
    last = len(ordered) - 1
    return {
        "n": len(ordered),
        "min": ordered[0],
        "q1": ordered[round(last * 0.25)],
        "median": timing.median_s,
        "q3": ordered[round(last * 0.75)],
        "max": ordered[-1],
    }
