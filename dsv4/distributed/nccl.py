"""Streams from GPU to GPU through NCCL, watched so that a lost peer cannot hang this process.

A send or a receive is a kernel that waits for the other side, for ever if that one is gone, and so
would every call that waits for the device. So before such calls a wait looks at an event until it
has happened, at the connections to the other processes, and at NCCL's own errors; when one of them
or the time is up, it aborts the communicator, which ends the kernels, and raises.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dsv4.distributed.frames import Kind
from dsv4.distributed.mesh import Mesh
from dsv4.errors import DeviceError, PeerLost
from dsv4.runtime.device import Device

_SPINS: Final = 2000
_LOOK_S: Final = 0.001


class Mark(Protocol):
    """A place in the order of a device's work, such as an event."""

    @property
    def done(self) -> bool:
        """Whether all work before it is done."""


@dataclass(frozen=True, slots=True)
class Library:
    """What of CuPy's NCCL is used, and of its streams.

    enter: makes the device the calling thread's. stream: the address of the current one. mark: a
    mark behind everything sent so far.
    """

    nccl: Any
    enter: Callable[[], None]
    stream: Callable[[], int]
    mark: Callable[[], Mark]


@dataclass(slots=True, eq=False)
class NcclTransport:
    """Sends and receives on the current stream of this rank's device."""

    mesh: Mesh
    library: Library
    communicator: Any
    under_way: set[int] = field(default_factory=set)
    moves: int = 0

    def send(self, device: Device, array: Any, to: int) -> None:
        """Send float32 elements on the stream."""
        self._move(self.communicator.send, device, array, to)

    def receive(self, device: Device, array: Any, source: int) -> None:
        """Receive float32 elements on the stream."""
        self._move(self.communicator.recv, device, array, source)

    def crossing(self) -> Callable[[], None]:
        """A call that waits for what was sent and received, as long as the others live."""
        if not self.under_way:
            return lambda: None
        mark, moves = self.library.mark(), self.moves

        def wait() -> None:
            self._guarded(lambda: self._until_done(mark))
            if moves == self.moves:
                self.under_way.clear()

        return wait

    def close(self) -> None:
        """End what is under way, or let go of a communicator that has nothing under way."""
        communicator, self.communicator = self.communicator, None
        if communicator is None:
            return
        if self.under_way:
            communicator.abort()
        else:
            communicator.destroy()

    def _move(self, call: Callable[..., None], device: Device, array: Any, other: int) -> None:
        self.under_way.add(other)
        self.moves += 1
        kind = self.library.nccl.NCCL_FLOAT32
        address, stream = device.address(array), self.library.stream()
        self._guarded(lambda: call(address, int(array.size), kind, other, stream))

    def _until_done(self, mark: Mark) -> None:
        mesh, tries = self.mesh, 0
        until = mesh.clock() + mesh.timeout_s
        while not mark.done:
            tries += 1
            self.communicator.check_async_error()
            mesh.look(0.0 if tries < _SPINS else _LOOK_S)
            if mesh.clock() > until:
                raise mesh.slow(min(self.under_way), "send or take streams (NCCL)")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run it; when it fails, nothing of NCCL goes on behind it. Errors: PeerError."""
        try:
            work()
        except self.library.nccl.NcclError as error:
            others = sorted(self.under_way)
            self.close()
            # The connection of a process that is gone says so more plainly than NCCL does.
            self.mesh.look()
            raise PeerLost(
                f"rank {self.mesh.rank} exchanged streams with rank {others}\n"
                f"  NCCL failed: {error}\n  in dsv4.distributed.nccl\n"
                "  see how the others ended (NCCL_DEBUG=WARN tells more), or try"
                " --transport sockets",
                rank=others[0],
            ) from error
        except BaseException:
            self.close()
            raise


def open_nccl(mesh: Mesh, used: Library, *, timeout_s: float) -> NcclTransport:
    """A communicator of all ranks of the mesh. Errors: PeerError when not all come in time."""
    used.enter()
    if mesh.rank == 0:
        unique = used.nccl.get_unique_id()
        mesh.broadcast(Kind.UNIQUE_ID, json.dumps([type(unique).__name__, *unique]).encode())
    else:
        # Bytes since CuPy 14, a tuple of numbers before.
        kind, *numbers = json.loads(mesh.receive(0, Kind.UNIQUE_ID, timeout_s=timeout_s))
        unique = bytes(numbers) if kind == "bytes" else tuple(numbers)
    made: list[Any] = []

    def join() -> None:
        try:
            used.enter()
            made.append(used.nccl.NcclCommunicator(mesh.world, unique, mesh.rank))
        except Exception as error:  # it is told where it is waited for
            made.append(error)

    # It waits for all others and cannot be told to stop, so this thread watches another one.
    joining = threading.Thread(target=join, name="nccl", daemon=True)
    joining.start()
    until = mesh.clock() + timeout_s
    while not made:
        joining.join(_LOOK_S)
        mesh.look()
        if not made and mesh.clock() > until:
            raise mesh.slow(min(mesh.peers), "join the communicator (NCCL)", timeout_s)
    if isinstance(made[0], Exception):
        raise PeerLost(
            f"rank {mesh.rank} joined {mesh.world} ranks in one communicator\n"
            f"  NCCL failed: {made[0]}\n  in dsv4.distributed.nccl\n"
            "  give every rank a GPU of its own (--devices), or use --transport sockets"
        ) from made[0]
    return NcclTransport(mesh, used, made[0])


def cupy_library(device: Device) -> Library:
    """CuPy's NCCL, and the streams of a GPU. Errors: DeviceError when they are not there."""
    try:
        import cupy
        from cupy.cuda import nccl

        nccl.get_version()
    except Exception as error:  # a missing library shows as any of several errors
        raise DeviceError(
            f"--transport nccl was asked for\n  CuPy's NCCL cannot be used: {error}\n"
            "  in this environment\n"
            "  install the extra of your CUDA: pip install nvidia-nccl-cu12 (or -cu13),"
            " or use --transport sockets"
        ) from None

    def mark() -> Mark:
        recorded = cupy.cuda.get_current_stream().record(cupy.cuda.Event(disable_timing=True))
        found: Mark = recorded
        return found

    def enter() -> None:
        cupy.cuda.Device(getattr(device, "index", 0)).use()

    return Library(nccl, enter, lambda: int(cupy.cuda.get_current_stream().ptr), mark)
