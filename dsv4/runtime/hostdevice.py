"""The host backend as a `Device`: NumPy arrays, the `.cu` sources compiled for the CPU."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.errors import DeviceError, Refusal, SpecError
from dsv4.runtime.device import Device, Graph, null_stream
from dsv4.runtime.host import CpAsync, Mode, build
from dsv4.runtime.sources import cuda_root
from dsv4.spec import Format, Geometry, KernelSpec

MODES = ("run", "shuffle", "check")
# What an unwritten output holds in shuffle mode: NaN in every float format.
_POISON_BYTE = 0xFF


@dataclass
class HostGraph:
    """Recorded host launches: a list of calls."""

    calls: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        """Run the recorded launches again, in order."""
        for call in self.calls:
            call()


class HostDevice:
    """Runs kernels on NumPy arrays, synchronously.

    mode "run" is fast; "shuffle" runs threads in a seeded random order with shared memory and
    outputs poisoned; "check" reports out-of-bounds, races and barrier faults as `KernelFault`.
    """

    backend = "host"
    xp = np

    def __init__(self, *, mode: str = "run", seed: int = 0, workers: int | None = None) -> None:
        """Errors: DeviceError for an unknown mode."""
        if mode not in MODES:
            raise DeviceError(f"no host mode {mode!r}; there are {', '.join(MODES)}")
        self.mode = mode
        self.seed = seed
        self.workers = workers
        self.name = f"host ({mode})"
        self.arch = "host"
        self._recording: HostGraph | None = None

    def empty(self, shape: Sequence[int], fmt: Format) -> np.ndarray:
        """An uninitialised array of that format's storage type."""
        return np.empty(tuple(shape), dtype=fmt.storage)

    def zeros(self, shape: Sequence[int], fmt: Format) -> np.ndarray:
        """An array of that format's storage type, all bits 0."""
        array = self.empty(shape, fmt)
        array[...] = 0
        return array

    def contiguous(self, view: np.ndarray) -> np.ndarray:
        """A copy of a view, its elements one after the other."""
        return np.array(view, copy=True, order="C")

    def to_device(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array."""
        return np.array(array, copy=True, order="C")

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array."""
        return np.array(array, copy=True)

    def fetch(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        """A call that gives a copy, which is made now: launches are synchronous."""
        copy = self.to_numpy(array)
        return lambda: copy

    def write(self, array: np.ndarray, values: np.ndarray) -> None:
        """Copy values into the array; at once, also while a capture is open."""
        np.copyto(array, values.reshape(array.shape), casting="no")

    def receive(self, array: np.ndarray, source: np.ndarray, sender: Device) -> None:
        """Copy another host device's array; recorded while a capture is open."""

        def run() -> None:
            np.copyto(array, source, casting="no")

        if self._recording is None:
            run()
        else:
            self._recording.calls.append(run)

    def reach(self, peer: Device) -> None:
        """Nothing to do between host devices. Errors: Refusal for a device of another backend."""
        if peer.backend != "host":
            raise Refusal(
                f"{self.name} was to reach the memory of {peer.name}\n"
                "  kernels of the host backend run on the CPU\n  in dsv4.runtime.hostdevice\n"
                "  use devices of one backend"
            )

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of this machine's memory."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def address(self, array: np.ndarray) -> int:
        """The address of the first element."""
        return int(array.__array_interface__["data"][0])

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """Build or fetch the compiled source and return a call that runs it on these values."""
        source = cuda_root() / f"{spec.family}.cu"
        # Copies land as late as they may where order is shuffled, and at once elsewhere: the one
        # shows a missing wait, the other what is overwritten too early.
        landing: CpAsync = "deferred" if self.mode == "shuffle" else "eager"
        mode: Mode = self.mode  # type: ignore[assignment]
        module = build(source, defines=constants, mode=mode, cp_async=landing)
        declared = tuple(a.signature for a in spec.args)
        found = module.signature(spec.symbol)
        if found != declared:
            raise SpecError(
                f"{spec.name}: the source takes ({', '.join(found)}),"
                f" the declaration says ({', '.join(declared)})\n"
                f"  source {source}, declared in {spec.declared_at}\n"
                "  make both agree, argument by argument"
            )
        outputs = [v for a, v in zip(spec.args, values, strict=True) if a.role == "out"]
        poison = outputs if self.mode == "shuffle" else []
        early = spec.reads_early
        at_once = (*(early or ()), *spec.reads_passed)
        steady = None if early is None else [a.name in at_once for a in spec.args]

        def run() -> None:
            for array in poison:
                _fill_bytes(array, _POISON_BYTE)
            module.launch(
                spec.symbol,
                grid=geometry.grid,
                block=geometry.block,
                shared_bytes=geometry.shared_bytes,
                args=values,
                seed=self.seed,
                workers=self.workers,
                steady=steady,
                cluster=geometry.cluster,
                passes_on=spec.passes_on,
            )

        def submit() -> None:
            if self._recording is None:
                run()
            else:
                self._recording.calls.append(run)

        return submit

    @property
    def launches_early(self) -> bool:
        """Launches follow each other."""
        return False

    def active(self) -> contextlib.AbstractContextManager[None]:
        """There is one processor, and everything is in order."""
        return contextlib.nullcontext()

    def require_dependent_launch(self) -> None:
        """Nothing to require: launches follow each other, and check mode holds the rules."""

    def synchronize(self) -> None:
        """Nothing to wait for: launches are synchronous."""

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """A stand-in: launches are synchronous."""
        return null_stream()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Record launches inside the `with` instead of running them."""
        if self._recording is not None:
            raise DeviceError("a capture is open already on this host device; close it first")
        self._recording = HostGraph()
        try:
            yield self._recording
        finally:
            self._recording = None

    def run_beside(self, branches: Sequence[Sequence[Callable[[], None]]]) -> None:
        """Run the branches one after the other, the last one first: none may need another."""
        for branch in reversed(branches):
            for run in branch:
                run()

    def gemm_bf16(self, w: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """out[m, n] = x[m, k] w[n, k]^T from bf16 bits, as a NumPy float32 product."""

        def run() -> None:
            np.matmul(_widen_bf16(x), _widen_bf16(w).T, out=out)

        if self._recording is None:
            run()
        else:
            self._recording.calls.append(run)

    def time_s(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Wall-clock seconds of each repeat."""
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return times


_current: list[HostDevice] = []


def current_host_device() -> HostDevice:
    """The innermost device of `using`, or a plain one in run mode."""
    if not _current:
        _current.append(HostDevice())
    return _current[-1]


@contextlib.contextmanager
def using(device: HostDevice) -> Iterator[HostDevice]:
    """Make this the device that launches on NumPy arrays use, inside the `with`."""
    current_host_device()
    _current.append(device)
    try:
        yield device
    finally:
        _current.pop()


def _fill_bytes(array: np.ndarray, byte: int) -> None:
    pattern = np.full(array.itemsize, byte, np.uint8).view(array.dtype)[0]
    array[...] = pattern


def _widen_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
