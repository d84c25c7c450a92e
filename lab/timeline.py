"""Where the time of a step goes, launch by launch, as they overlap in its graph.

A kernel timed alone says nothing of what it costs between its neighbours: it begins while the one
in front ends, and it waits. Here a launch has the time from the end of its own wait to the end of
the next launch's: these add up to the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dsv4 import registry
from dsv4.engine.switches import resolve_arms
from dsv4.errors import DeviceError, Refusal
from dsv4.runtime.device import cuda_problem
from lab.minted import model_of

if TYPE_CHECKING:
    from dsv4.engine.tape import Entry


@dataclass(frozen=True, slots=True)
class Placed:
    """One kernel's launches in a step.

    place_s: from the end of its wait to the end of the next one's, the median of its launches;
    total_s: of all of them. early_s: how long before the end of its wait it began, the median.
    size_bytes: what those that total_s is of must move.
    """

    kernel: str
    launches: int
    place_s: float
    total_s: float
    early_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step in place. launches: those that wait; span_s: from the first wait's end to the last's.

    without: kernels of the step that do not wait; their time is in that of the one in front.
    """

    position: int
    rows: int
    launches: int
    span_s: float
    kernels: tuple[Placed, ...]
    without: tuple[str, ...]


def timeline(
    where: Path | str,
    *,
    context: int,
    rows: int = 1,
    repeats: int = 10,
    index: int = 0,
    arms: Mapping[str, str | None] | None = None,
) -> Timeline:
    """The greedy step of a model behind `context` tokens, the median of that many replays.

    arms: switches of the engine by name. Errors: DeviceError without a GPU, Refusal where steps are
    no graph, as `bench_step` else.
    """
    if (problem := cuda_problem()) is not None:
        raise DeviceError(
            f"a timeline was asked for, but {problem}\n"
            "  on the CPU launches follow each other, and dsv4-lab step tells all there is\n"
            "  in lab.timeline\n  run it on a GPU"
        )
    from dsv4.engine.engine import Engine
    from dsv4.runtime.timed import BEGUN, WAITED, TimedDevice
    from lab.bench.steps import open_step

    device = TimedDevice(index)
    engine = Engine.load(
        model_of(where),
        [device],
        backend="cuda",
        max_seq=context + rows,
        arms=resolve_arms(**(arms or {})),
    )
    step = open_step(engine, context=context, rows=rows)
    if not step.graph or step.reasons:
        raise Refusal(
            "a timeline of a step was asked for\n"
            f"  {'; '.join(step.reasons) or 'these switches replay no graph'}\n"
            "  in lab.timeline\n  choose the device path with graphs"
        )
    found = []
    for _ in range(1 + repeats):  # the first one is for the caches
        device.forget()
        step.again.replay()
        records = device.records()
        found.append(
            [records["nanoseconds"][records["place"] == place] for place in (BEGUN, WAITED)]
        )
    return placed(step.entries, found[1:], position=context, rows=rows)


def placed(
    entries: Sequence[Entry],
    replays: Sequence[Sequence[np.ndarray]],
    *,
    position: int = 0,
    rows: int = 1,
) -> Timeline:
    """The timeline of a step's launches from (times of beginning, of waiting) [ns] of its replays.

    Errors: Refusal when a replay has other launches than the step.
    """
    waiting = [e for e in entries if registry.spec(e.name).reads_early is not None]
    for begun, waited in replays:
        if not len(begun) == len(waited) == len(waiting):
            raise Refusal(
                f"a step with {len(waiting)} launches that wait was replayed\n"
                f"  {len(begun)} began and {len(waited)} waited\n  in lab.timeline\n"
                "  a kernel that is declared reads_early calls let_next_start and"
                " wait_for_previous in its first block's first thread, once each"
            )
    times = 1e-9 * np.array([np.stack(r).astype(np.int64) for r in replays], np.float64)
    begun, waited = times[:, 0], times[:, 1]
    lasted = np.median(np.diff(waited, axis=1), axis=0)
    early = np.median(waited - begun, axis=0)
    kernels = []
    for name in dict.fromkeys(e.name for e in waiting):
        own = [i for i, e in enumerate(waiting) if e.name == name]
        inner = [i for i in own if i < len(lasted)]  # nothing waits behind the last launch
        kernels.append(
            Placed(
                name,
                len(own),
                float(np.median(lasted[inner])) if inner else 0.0,
                float(lasted[inner].sum()),
                float(np.median(early[own])),
                sum(waiting[i].size_bytes for i in inner),
            )
        )
    names = dict.fromkeys(e.name for e in entries if e not in waiting)
    return Timeline(position, rows, len(waiting), float(lasted.sum()), tuple(kernels), tuple(names))
