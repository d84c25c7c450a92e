"""Streams as messages of the mesh: through host memory, between any two machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.distributed.frames import Kind
from dsv4.distributed.mesh import Mesh
from dsv4.errors import PeerMismatch
from dsv4.runtime.device import Device


@dataclass(frozen=True, slots=True)
class SocketTransport:
    """Arrays through the connections that the processes have anyway."""

    mesh: Mesh

    def send(self, device: Device, array: Any, to: int) -> None:
        """Wait for the array and send its bytes."""
        values = np.ascontiguousarray(device.to_numpy(array))
        self.mesh.send(to, Kind.STREAMS, values.data.cast("B"))

    def receive(self, device: Device, array: Any, source: int) -> None:
        """Wait for the bytes and write them. Errors: PeerMismatch for another number of them."""
        body = self.mesh.receive(source, Kind.STREAMS)
        if len(body) != array.nbytes:
            raise PeerMismatch(
                f"rank {self.mesh.rank} waited for streams {list(array.shape)} of rank {source}\n"
                f"  {len(body)} bytes came for {array.nbytes}\n  in dsv4.distributed.sockets\n"
                "  start all ranks with the same arguments",
                rank=source,
            )
        device.write(array, np.frombuffer(body, np.float32).reshape(array.shape))

    def crossing(self) -> Callable[[], None]:
        """A call that has nothing to wait for: sending and receiving wait."""
        return lambda: None

    def close(self) -> None:
        """Nothing to give back: the mesh closes its connections."""
