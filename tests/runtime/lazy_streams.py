"""Streams of a GPU that is none: nothing sent to one happens before somebody has to wait for it.

What an order of streams and events does not force happens as late as it can, so work that only
seems to be in order shows. It has the names of CuPy that `dsv4.runtime.cuda` uses for copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_BACKENDS = ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api")


@dataclass(eq=False)
class Event:
    """Done once everything in front of it on its stream is."""

    disable_timing: bool = False
    stream: Stream | None = None
    place: int = 0

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.run_to(self.place)


@dataclass(eq=False)
class Stream:
    """Work in order. ptr: as CUDA knows it."""

    ptr: int
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    sent: int = 0

    def send(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)
        self.sent += 1

    def run_to(self, place: int) -> None:
        while self.sent - len(self.waiting) < place:
            self.waiting[0]()
            self.waiting.popleft()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.stream, event.place = self, self.sent
        return event

    def wait_event(self, event: Event) -> None:
        self.send(event.synchronize)


class Pinned(bytearray):
    """Host memory with an address."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof((ctypes.c_char * len(self)).from_buffer(self))


@dataclass
class Pointer:
    """Where an array lies."""

    ptr: int

    def copy_to_host_async(self, host: int, size: int, stream: Stream) -> None:
        stream.send(lambda: ctypes.memmove(host, self.ptr, size))

    def copy_from_host_async(self, host: int, size: int, stream: Stream) -> None:
        stream.send(lambda: ctypes.memmove(self.ptr, host, size))


class Array(np.ndarray):
    """An array of a device: its contents are looked at by tests alone."""

    @property
    def data(self) -> Any:
        return Pointer(self.ctypes.data)

    def set(self, values: np.ndarray) -> None:
        raise AssertionError("a copy that waits for the device")


class Cards:
    """Two of them, and the module that they are used through."""

    def __init__(self) -> None:
        self.streams = [Stream(101), Stream(102)]
        self.current = 0
        self.cuda: Any = ModuleType("cupy.cuda")
        self.cuda.Event, self.cuda.alloc_pinned_memory = Event, Pinned
        self.cuda.get_current_stream = lambda: self.streams[self.current]
        self.cuda.runtime = SimpleNamespace(memcpyPeerAsync=self._peer_copy)
        self.cuda.cublas = self.cuda.nvrtc = SimpleNamespace()
        self.cupy: Any = ModuleType("cupy")
        self.cupy.cuda, self.cupy.ascontiguousarray = self.cuda, lambda array: array
        self.devices: list[Any] = []

    def device(self, made: type, index: int) -> Any:
        """A device of that class on one of the cards."""
        device: Any = object.__new__(made)
        device.index, device._staged = index, deque()
        device._device = _Entered(self, index)
        return device

    def _peer_copy(self, to: int, _: int, source: int, __: int, size: int, stream: int) -> None:
        (found,) = [s for s in self.streams if s.ptr == stream]
        found.send(lambda: ctypes.memmove(to, source, size))

    def finish(self) -> None:
        """Everything that was sent happens."""
        for stream in self.streams:
            stream.run_to(stream.sent)


@dataclass
class _Entered:
    """Makes a device the current one inside a `with`."""

    cards: Cards
    index: int
    before: list[int] = field(default_factory=list)

    def __enter__(self) -> None:
        self.before.append(self.cards.current)
        self.cards.current = self.index

    def __exit__(self, *error: object) -> None:
        self.cards.current = self.before.pop()


def array(values: Any) -> Array:
    """An array of a device with these contents."""
    return np.array(values, np.int32).view(Array)


@contextlib.contextmanager
def cards(patch: Any) -> Iterator[Cards]:
    """Two cards, on which the module of the CUDA backend is loaded anew."""
    made, own = Cards(), ("dsv4.runtime.cuda", "dsv4.runtime.blas")
    package = sys.modules["dsv4.runtime"]
    before = {name: sys.modules.pop(name, None) for name in own}
    try:
        with patch.context() as inner:
            inner.setitem(sys.modules, "cupy", made.cupy)
            inner.setitem(sys.modules, "cupy.cuda", made.cuda)
            for name in _BACKENDS:  # installed with CuPy alone
                inner.setitem(sys.modules, name, ModuleType(name))
            inner.setattr(sys.modules[_BACKENDS[-1]], "driver", SimpleNamespace(), raising=False)
            backend = importlib.import_module("dsv4.runtime.cuda")
            made.devices = [made.device(backend.CudaDevice, index) for index in (0, 1)]
            yield made
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            with contextlib.suppress(AttributeError):
                delattr(package, name.rpartition(".")[2])
            if module is not None:
                sys.modules[name] = module
                setattr(package, name.rpartition(".")[2], module)
