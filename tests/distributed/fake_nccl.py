"""NCCL as CuPy shows it, over host memory: transfers end when both sides are there, or never."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from dsv4.distributed.nccl import Library


class NcclError(RuntimeError):
    """What a failed call raises."""


@dataclass
class Wires:
    """What connects the communicators of one id. joined: open when all may come together."""

    queues: dict[tuple[int, int], queue.Queue[bytes]] = field(
        default_factory=lambda: defaultdict(queue.Queue)
    )
    joined: threading.Event = field(default_factory=threading.Event)


WIRES: dict[bytes | tuple[int, ...], Wires] = defaultdict(Wires)


@dataclass
class Stream:
    """Transfers of one device in order, and how many are done."""

    waiting: deque[Any] = field(default_factory=deque)
    sent: int = 0
    ended: int = 0

    def add(self, work: Any) -> None:
        self.waiting.append(work)
        self.sent += 1

    def advance(self) -> None:
        while self.waiting and self.waiting[0]():
            self.waiting.popleft()
            self.ended += 1


@dataclass
class Event:
    """A place in a stream."""

    stream: Stream
    place: int

    @property
    def done(self) -> bool:
        self.stream.advance()
        return self.stream.ended >= self.place


@dataclass
class Nccl:
    """The module as one process sees it. calls: what was done to its communicator."""

    stream: Stream = field(default_factory=Stream)
    calls: list[str] = field(default_factory=list)
    fault: str = ""
    NcclError: type = NcclError
    NCCL_FLOAT32: int = 7
    refuses: str = ""
    id_type: type = bytes  # a tuple before CuPy 14

    def get_unique_id(self) -> bytes | tuple[int, ...]:
        number = id(self) % 100 + 1
        if self.id_type is bytes:
            return bytes([number] + [255] * 127)
        return tuple([number] + [-1] * 127)

    def NcclCommunicator(
        self, world: int, unique: bytes | tuple[int, ...], rank: int
    ) -> Communicator:
        assert len(unique) == 128 and isinstance(unique, self.id_type) and 0 <= rank < world
        WIRES[unique].joined.wait()
        if self.refuses:
            raise NcclError(self.refuses)
        return Communicator(self, WIRES[unique], rank)

    def library(self) -> Library:
        return Library(self, lambda: None, lambda: 0, lambda: Event(self.stream, self.stream.sent))


@dataclass
class Communicator:
    """One rank's."""

    nccl: Nccl
    wires: Wires
    rank: int

    def send(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        assert kind == Nccl.NCCL_FLOAT32

        def work() -> bool:
            self.wires.queues[self.rank, peer].put(ctypes.string_at(address, 4 * count))
            return True

        self.nccl.stream.add(work)
        self.nccl.stream.advance()

    def recv(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        assert kind == Nccl.NCCL_FLOAT32

        def work() -> bool:
            wire = self.wires.queues[peer, self.rank]
            if wire.empty():
                return False
            data = wire.get()
            assert len(data) == 4 * count
            ctypes.memmove(address, data, len(data))
            return True

        self.nccl.stream.add(work)

    def check_async_error(self) -> None:
        if self.nccl.fault:
            raise NcclError(self.nccl.fault)

    def abort(self) -> None:
        self.nccl.calls.append("abort")

    def destroy(self) -> None:
        self.nccl.calls.append("destroy")
