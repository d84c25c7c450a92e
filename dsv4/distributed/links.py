"""The stages before and after this process's, as its engine sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.distributed.frames import Kind
from dsv4.distributed.mesh import Mesh
from dsv4.distributed.transport import Transport
from dsv4.errors import PeerMismatch
from dsv4.runtime.device import Device
from dsv4.spec import F32

# One row of streams, and sizes at which transports change their ways.
PROBE_SIZES: Final = (64, 16 << 10, 256 << 10)


@dataclass(frozen=True, slots=True)
class StageLinks:
    """Streams by a transport, results by the mesh."""

    mesh: Mesh
    transport: Transport

    @property
    def rank(self) -> int:
        """The number of this process, which is that of its stage."""
        return self.mesh.rank

    @property
    def world(self) -> int:
        """How many processes there are."""
        return self.mesh.world

    def receive(self, device: Device, array: Any) -> None:
        """Fill an array with the streams of the stage before."""
        self.transport.receive(device, array, self.rank - 1)

    def send(self, device: Device, array: Any) -> None:
        """Hand streams to the stage after."""
        self.transport.send(device, array, self.rank + 1)

    def crossing(self) -> Callable[[], None]:
        """A call that waits until all that crosses by now has arrived."""
        return self.transport.crossing()

    def share(self, value: np.ndarray | None) -> np.ndarray:
        """What the last rank gives, on all of them."""
        last = self.world - 1
        if value is not None:
            header = json.dumps([value.dtype.str, list(value.shape)]).encode()
            body = header + b"\n" + np.ascontiguousarray(value).tobytes()
            self.mesh.broadcast(Kind.RESULT, body)
            return value
        header, _, data = self.mesh.receive(last, Kind.RESULT).partition(b"\n")
        dtype, shape = json.loads(header)
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def probe_links(links: StageLinks, device: Device) -> None:
    """Nothing, if arrays that go from stage to stage arrive byte for byte.

    Each rank fills one of a set size, the next one expects it. Errors: PeerMismatch naming the
    size and the first byte that is wrong.
    """
    for size in PROBE_SIZES:
        pattern = np.random.default_rng(size).integers(0, 1 << 32, size, np.uint32)
        values = pattern.view(np.float32)
        array = device.empty((size,), F32)
        if links.rank > 0:
            device.write(array, (~pattern).view(np.float32))
            links.receive(device, array)
            links.crossing()()
            got = device.to_numpy(array).view(np.uint8)
            wrong = np.flatnonzero(got != pattern.view(np.uint8))
            if len(wrong):
                raise PeerMismatch(
                    f"rank {links.rank} was sent {4 * size} bytes by rank {links.rank - 1}\n"
                    f"  {len(wrong)} of them arrived wrong, first byte {int(wrong[0])}\n"
                    "  in the probe before a run\n  check the link, or use another --transport",
                    rank=links.rank - 1,
                )
        if links.rank < links.world - 1:
            device.write(array, values)
            links.send(device, array)
            links.crossing()()
