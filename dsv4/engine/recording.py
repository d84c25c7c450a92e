"""Kept launches as graphs: one for each stretch on one device, and what crosses between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dsv4.engine.lanes import Piece, by_device, in_order
from dsv4.engine.tape import Entry, Tape
from dsv4.runtime.device import Device, Graph


@dataclass(frozen=True, slots=True)
class Recorded:
    """Graphs, and between them copies that are sent anew each time, in order."""

    parts: tuple[Callable[[], None], ...]
    graphs: int

    def replay(self) -> None:
        """Send everything once."""
        for part in self.parts:
            part()


@dataclass(slots=True)
class _Stretch:
    """Launches of one device in a row, each with the tape that it was kept on."""

    device: Device
    pieces: list[tuple[Tape, list[Entry]]] = field(default_factory=list)


def recorded(tapes: Sequence[Tape], beside: bool) -> Recorded:
    """What the tapes kept, as graphs that end where a device ends or something crosses.

    beside: branches run side by side in a graph. Ranks have a graph each, with their joins in it,
    which wait for the other graphs; where no launch can wait, joins stand between graphs.
    """
    parts: list[_Stretch | Callable[[], None]] = []
    for tape, kept in _pieces(tapes):
        for crossing, some in itertools.groupby(kept, key=lambda e: e.crossing):
            entries = list(some)
            if crossing:
                parts += [entry.run for entry in entries]
                continue
            before = parts[-1] if parts else None
            if not isinstance(before, _Stretch) or before.device is not tape.device:
                before = _Stretch(tape.device)
                parts.append(before)
            before.pieces.append((tape, entries))
    made = [_graph(p, beside).replay if isinstance(p, _Stretch) else p for p in parts]
    return Recorded(tuple(made), sum(isinstance(p, _Stretch) for p in parts))


def _pieces(tapes: Sequence[Tape]) -> list[Piece]:
    if any(entry.join and not entry.crossing for tape in tapes for entry in tape.entries):
        return [(tape, tape.entries) for lane in by_device(tapes) for tape in lane]
    return in_order(tapes)


def _graph(stretch: _Stretch, beside: bool) -> Graph:
    with stretch.device.capture() as graph:
        for tape, entries in stretch.pieces:
            tape.record(beside, entries)
    return graph
