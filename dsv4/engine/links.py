"""What a stage has to do with stages in other processes: streams cross, and results come back.

Every process runs the same loop on the same tokens. A process holds one stage: it takes streams
from the one before, hands them to the one after, and learns from the last one what its head said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dsv4.runtime.device import Device


class Links(Protocol):
    """The other processes of a run, as a stage sees them. Errors of all calls: PeerError."""

    @property
    def rank(self) -> int:
        """The number of this process, which is that of its stage."""

    @property
    def world(self) -> int:
        """How many processes there are."""

    def receive(self, device: Device, array: Any) -> None:
        """Fill an array with the streams of the stage before, in the order of the device."""

    def send(self, device: Device, array: Any) -> None:
        """Hand streams to the stage after, in the order of the device."""

    def crossing(self) -> Callable[[], None]:
        """A call that waits until all that crosses by now has arrived.

        After it, waiting for the device's work so far is safe: none of it waits for a process.
        """

    def share(self, value: np.ndarray | None) -> np.ndarray:
        """What the last process gives, on all of them; the others give None."""


def fetched(links: Links | None, device: Device, array: Any) -> Callable[[], np.ndarray]:
    """A call that gives an array of the last stage, as it is now, on the host of every process."""
    if links is None:
        return device.fetch(array)
    joined = links
    here = joined.rank == joined.world - 1
    copy = device.fetch(array) if here else None
    arrive = joined.crossing()

    def finish() -> np.ndarray:
        arrive()
        return joined.share(None if copy is None else copy())

    return finish
