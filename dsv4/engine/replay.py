"""Bound launches of several tapes, replayed as graphs where that is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4.engine.decode import uses_graphs
from dsv4.engine.lanes import send
from dsv4.engine.recording import Recorded, recorded
from dsv4.engine.tape import Tape

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(slots=True, eq=False)
class Replay:
    """Tapes that run in order, again and again, with the bytes of launches.

    The first run launches, so that everything is loaded; a later one records, and all after it
    replay. graph: None before, and wherever the host looks in between.
    """

    engine: Engine
    tapes: tuple[Tape, ...]
    launched: bool = False
    graph: Recorded | None = None

    def run(self) -> None:
        """Send everything once."""
        if self.graph is None and self.launched and self._recordable():
            self.graph = recorded(self.tapes, self.engine.arms.branches)
        if self.graph is not None:
            self.graph.replay()
            return
        send(self.tapes)
        self.launched = True

    def _recordable(self) -> bool:
        looks = any(entry.host for tape in self.tapes for entry in tape.entries)
        return uses_graphs(self.engine) and not looks
