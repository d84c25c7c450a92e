"""How streams get from the device of one process to the device of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dsv4.runtime.device import Device


class Transport(Protocol):
    """Moves arrays between ranks, each pair of calls in the order of both. Errors: PeerError."""

    def send(self, device: Device, array: Any, to: int) -> None:
        """Hand an array of this rank's device to another rank, after the work sent so far."""

    def receive(self, device: Device, array: Any, source: int) -> None:
        """Fill an array of this rank's device from another rank, before the work sent next."""

    def crossing(self) -> Callable[[], None]:
        """A call that waits until all that was sent and received by now is done.

        Nothing that waits for the device may come before it.
        """

    def close(self) -> None:
        """Give everything back; what is still under way never ends."""
