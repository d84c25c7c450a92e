"""Engines to be timed: one for each arm, on the same weights where the arms allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dsv4.engine.arms import Arms
from dsv4.engine.engine import Engine
from dsv4.engine.state import new_control
from dsv4.engine.switches import resolve_arms
from dsv4.engine.tape import Workspace
from lab.engine_steps import open_engine

# What decides what is loaded, and where it lies; everything else decides how a launch is made.
LOADING: Final = frozenset({"dense_fp8", "split_at", "prefill_chunk", "drafter", "parallel"})


def engines(
    folder: Path | str,
    devices: Sequence[int],
    backend: str,
    max_seq: int | None,
    arms: Sequence[Mapping[str, str | None]],
) -> list[Engine]:
    """An engine for each set of switches. Errors: as `Engine.load`.

    Arms that differ after loading only share their weights, so that a model which fills the card
    can be compared with itself.
    """
    first = open_engine(folder, devices, backend, max_seq, arms[0])
    found = [first]
    for switches in arms[1:]:
        wanted = resolve_arms(**switches)
        if share_weights(first.arms, wanted):
            found.append(on_the_same_weights(first, wanted))
        else:
            found.append(open_engine(folder, devices, backend, max_seq, switches))
    return found


def share_weights(a: Arms, b: Arms) -> bool:
    """Whether what the two load is the same."""
    mine, other = a.to_json(), b.to_json()
    return all(mine[name] == other[name] for name in LOADING)


def on_the_same_weights(engine: Engine, arms: Arms) -> Engine:
    """The engine under other switches that load the same (`share_weights`), beside it."""
    chunk = arms.prefill_chunk
    return replace(
        engine,
        arms=arms,
        spaces=tuple(Workspace(s.device, chunk) for s in engine.stages),
        controls=tuple(new_control(s.device, chunk) for s in engine.stages),
    )
