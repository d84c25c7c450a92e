"""In which order the launches of several tapes are sent: one after the other, or rank beside rank.

Tapes of stages follow each other. Tapes of ranks meet at joins: everything in front of a join is
sent on all ranks before any rank's join, and all of them before anything behind it. So nothing that
is sent, and nothing that a driver waits for while it sends, ever waits for what comes later.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dsv4.engine.tape import Entry, Tape

Piece = tuple[Tape, list[Entry]]
"""Launches in a row, and the tape on which they were kept."""


def meeting(tapes: Sequence[Tape]) -> bool:
    """Whether these are tapes of ranks that join."""
    return any(entry.join for tape in tapes for entry in tape.entries)


def by_device(tapes: Sequence[Tape]) -> list[list[Tape]]:
    """The tapes of every rank, in order."""
    lanes: dict[int, list[Tape]] = {}
    for tape in tapes:
        lanes.setdefault(id(tape.device), []).append(tape)
    return list(lanes.values())


def in_order(tapes: Sequence[Tape]) -> list[Piece]:
    """What the tapes kept, in an order in which it can be sent."""
    if not meeting(tapes):
        return [(tape, tape.entries) for tape in tapes]
    lanes = [_stretches(lane) for lane in by_device(tapes)]
    counts = {len(lane) for lane in lanes}
    assert len(counts) == 1, f"ranks meet at each of their joins, not at {counts} of them"
    # Stretches without joins and joins take turns, beginning and ending with the former.
    return [piece for together in zip(*lanes, strict=True) for one in together for piece in one]


def send(tapes: Sequence[Tape]) -> None:
    """Run what the tapes kept, once."""
    for tape, entries in in_order(tapes):
        tape.run(entries)


def flush(tapes: Sequence[Tape]) -> None:
    """Run and forget what they kept; nothing for tapes that keep nothing."""
    send(tapes)
    for tape in tapes:
        tape.entries.clear()


def _stretches(lane: Sequence[Tape]) -> list[list[Piece]]:
    """Launches up to a join, the join, launches up to the next one, ..., the last launches."""
    found: list[list[Piece]] = [[]]
    for tape in lane:
        for join, some in itertools.groupby(tape.entries, key=lambda e: e.join):
            if not join:
                found[-1].append((tape, list(some)))
                continue
            for entry in some:
                found += [[(tape, [entry])], []]
    return found
