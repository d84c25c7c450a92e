"""The CUDA backend as a `Device`: CuPy arrays, cubins through `RawModule(path=...)`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from dsv4.errors import DeviceError, LaunchError, Refusal
from dsv4.runtime.blas import Blas
from dsv4.runtime.device import Device, Graph
from dsv4.runtime.nvrtc import Cubin, Resources, compile_cubin
from dsv4.runtime.sources import are_steady, cuda_root, include_closure
from dsv4.spec import Format, Geometry, KernelSpec

# Architecture-specific targets that NVRTC knows; others are compiled for their plain name.
_FEATURE_TARGETS = {"90": "sm_90a", "100": "sm_100a", "120": "sm_120a"}


# Pinned memory for writes that are under way, in so many slots of so many bytes.
_STAGED_WRITES = 32
_STAGED_BYTES = 4096
_PEER_ACCESS_ALREADY_ENABLED = 704

# Blocks of a cluster that every card with clusters takes, and the driver's name for taking more:
# CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
_PORTABLE_CLUSTER = 8
_LARGER_CLUSTERS = 14

# The times of a source and its headers, and the cubin made of them.
_Stamped = tuple[tuple[tuple[Path, int], ...], Cubin]


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A captured CUDA graph of one device."""

    graph: Any
    stream: Any
    device: Any

    def replay(self) -> None:
        """Launch the graph on the stream it was captured on, and make the current one wait."""
        with self.device:
            current = cupy.cuda.get_current_stream()
            self.stream.wait_event(current.record())
            self.graph.launch(self.stream)
            current.wait_event(self.stream.record())


@dataclass
class _Capture:
    """Filled in when the capture ends, so that `with ... as graph` can hand it out early."""

    graph: CudaGraph | None = None

    def replay(self) -> None:
        """Replay the captured graph. Errors: DeviceError while the capture is still open."""
        if self.graph is None:
            raise DeviceError("the capture has not ended; leave its `with` before replaying")
        self.graph.replay()


class CudaDevice:
    """Runs kernels on one GPU, on CuPy's current stream."""

    backend = "cuda"
    xp = cupy

    def __init__(self, index: int = 0) -> None:
        """Errors: DeviceError when there is no such device."""
        if os.environ.get("DSV4_POOL") == "off":
            # Every array an allocation of its own: a memory checker then sees its exact end.
            cupy.cuda.set_allocator(None)
        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= index < count:
            raise DeviceError(f"device {index} was asked for; this machine has {count}")
        self.index = index
        self._device = cupy.cuda.Device(index)
        capability = self._device.compute_capability
        self.arch = _FEATURE_TARGETS.get(capability, f"sm_{capability}")
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        self._blas = Blas(index)
        self._beside: list[Any] = []
        self._staged: deque[tuple[Any, Any]] = deque()
        self._builds: dict[tuple[Path, frozenset[tuple[str, int]]], _Stamped] = {}

    def empty(self, shape: Sequence[int], fmt: Format) -> Any:
        """An uninitialised array of that format's storage type."""
        with self._device:
            return cupy.empty(tuple(shape), dtype=fmt.storage)

    def zeros(self, shape: Sequence[int], fmt: Format) -> Any:
        """An array of that format's storage type, all bits 0."""
        with self._device:
            return cupy.zeros(tuple(shape), dtype=fmt.storage)

    def contiguous(self, view: Any) -> Any:
        """A copy of a view, its elements one after the other, on the current stream."""
        with self._device:
            return cupy.array(view, copy=True, order="C")

    def to_device(self, array: np.ndarray) -> Any:
        """A copy of a NumPy array on this GPU."""
        with self._device:
            return cupy.asarray(np.ascontiguousarray(array))

    def to_numpy(self, array: Any) -> np.ndarray:
        """A copy on the host; waits for the current stream."""
        with self._device:
            return np.asarray(cupy.asnumpy(array))

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        """A call that gives a copy, which the current stream makes when its work so far is done."""
        with self._device:
            stream = cupy.cuda.get_current_stream()
            memory = cupy.cuda.alloc_pinned_memory(max(1, array.nbytes))
            copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
            kept = cupy.ascontiguousarray(array)
            kept.data.copy_to_host_async(copy.ctypes.data, kept.nbytes, stream)
            done = stream.record(cupy.cuda.Event(disable_timing=True))

        def finish() -> np.ndarray:
            # The array is held until it has been read.
            assert kept.shape == copy.shape
            done.synchronize()
            return copy.copy()

        return finish

    def write(self, array: Any, values: np.ndarray) -> None:
        """Copy host values into the array, on the current stream.

        A few values are staged, so that this does not wait for the work sent before.
        """
        given = np.ascontiguousarray(values.reshape(array.shape))
        plain = array.dtype == given.dtype and array.flags.c_contiguous
        with self._device:
            if plain and 0 < given.nbytes <= _STAGED_BYTES:
                self._write_staged(array, given)
            else:
                array.set(given)

    def _write_staged(self, array: Any, values: np.ndarray) -> None:
        if len(self._staged) < _STAGED_WRITES:
            slot, read = cupy.cuda.alloc_pinned_memory(_STAGED_BYTES), None
        else:
            slot, read = self._staged.popleft()
        if read is not None:
            read.synchronize()
        np.frombuffer(slot, np.uint8, values.nbytes)[:] = values.reshape(-1).view(np.uint8)
        stream = cupy.cuda.get_current_stream()
        array.data.copy_from_host_async(slot.ptr, values.nbytes, stream)
        read = stream.record(cupy.cuda.Event(disable_timing=True))
        self._staged.append((slot, read))

    def receive(self, array: Any, source: Any, sender: Device) -> None:
        """Copy another GPU's array on the current stream, once the sender's work is done."""
        if isinstance(sender, CudaDevice) and sender.index != self.index:
            with sender._device:
                done = cupy.cuda.get_current_stream().record()
            with self._device:
                stream = cupy.cuda.get_current_stream()
                stream.wait_event(done)
                cupy.cuda.runtime.memcpyPeerAsync(
                    array.data.ptr, self.index, source.data.ptr, sender.index,
                    array.nbytes, stream.ptr,
                )  # fmt: skip
                read = stream.record(cupy.cuda.Event(disable_timing=True))
            with sender._device:
                # What the sender does next may write what is being read.
                cupy.cuda.get_current_stream().wait_event(read)
            return
        with self._device:
            array.data.copy_from_device_async(source.data, array.nbytes)

    def reach(self, peer: Device) -> None:
        """Let kernels of this GPU read and write the peer's memory.

        Errors: Refusal for a device that is none of this host's other GPUs, or without a link.
        """
        runtime = cupy.cuda.runtime
        other = peer.index if isinstance(peer, CudaDevice) else self.index
        if other == self.index or not runtime.deviceCanAccessPeer(self.index, other):
            raise Refusal(
                f"kernels on {self.name} ({self.index}) were to reach the memory of {peer.name}\n"
                f"  the driver lets device {self.index} reach no device {other}\n"
                "  in dsv4.runtime.cuda\n  use GPUs that nvidia-smi topo -p2p r calls OK"
            )
        with self._device:
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                # CuPy lets devices see each other when it copies between them.
                if error.status != _PEER_ACCESS_ALREADY_ENABLED:
                    raise

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of this GPU's memory; blocks that the pool holds unused are free."""
        with self._device:
            free, total = self._device.mem_info
            return free + cupy.get_default_memory_pool().free_bytes(), total

    def address(self, array: Any) -> int:
        """The device address of the first element."""
        return int(array.data.ptr)

    def build(self, spec: KernelSpec, constants: Mapping[str, int]) -> Cubin:
        """The cubin of this kernel's source for this GPU."""
        source = cuda_root() / f"{spec.family}.cu"
        key = (source, frozenset(constants.items()))
        if known := self._builds.get(key):
            stamps, cubin = known
            # An edit is still seen, at the price of a few file times instead of their contents.
            if are_steady() or all(p.stat().st_mtime_ns == modified for p, modified in stamps):
                return cubin
        cubin = compile_cubin(source, defines=constants, arch=self.arch)
        stamps = tuple((p, p.stat().st_mtime_ns) for p in include_closure(source))
        self._builds[key] = (stamps, cubin)
        return cubin

    def attributes(self, spec: KernelSpec, constants: Mapping[str, int]) -> Resources:
        """What the driver says the loaded kernel uses; its local memory counts as spills."""
        path = str(self.build(spec, constants).path)
        with self._device:
            function = _function(self.index, spec.symbol, path)
            local = function.local_size_bytes
            return Resources(function.num_regs, function.shared_size_bytes, local, local)

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """Build or fetch the module and return a call that launches it on the current stream."""
        path = str(self.build(spec, constants).path)
        # CuPy's functions have attributes for each device: those of the current one are meant.
        with self._device:
            function = _function(self.index, spec.symbol, path)
            self._allow_shared(spec, function, geometry.shared_bytes)
            if geometry.cluster > _PORTABLE_CLUSTER:
                driver.funcSetAttribute(function.kernel.ptr, _LARGER_CLUSTERS, 1)
            if geometry.dependent and self._begins_early(geometry):
                return self._dependent(function, geometry, values)
        grid, block, shared = geometry.grid, geometry.block, geometry.shared_bytes
        arguments = tuple(values)

        def run() -> None:
            with self._device:
                function(grid, block, arguments, shared_mem=shared)

        return run

    def _allow_shared(self, spec: KernelSpec, function: Any, asked: int) -> None:
        if asked <= function.max_dynamic_shared_size_bytes:
            return
        limit = self._device.attributes["MaxSharedMemoryPerBlockOptin"]
        if asked + function.shared_size_bytes > limit:
            raise LaunchError(
                f"{spec.name}: asks {asked} bytes of dynamic shared memory beside"
                f" {function.shared_size_bytes} static; {self.name} has {limit} a block\n"
                f"  declared in {spec.declared_at}\n  use a smaller tile"
            )
        function.max_dynamic_shared_size_bytes = asked

    def _begins_early(self, geometry: Geometry) -> bool:
        from dsv4.runtime import dependent

        count = int(self._device.attributes["MultiProcessorCount"])
        return dependent.pays(geometry, multiprocessors=count)

    def _dependent(
        self, function: Any, geometry: Geometry, values: Sequence[Any]
    ) -> Callable[[], None]:
        from dsv4.runtime import dependent

        launch = dependent.launcher(function, geometry, values)

        def run() -> None:
            with self._device:
                launch()

        return run

    @functools.cached_property
    def launches_early(self) -> bool:
        """Whether dependent launches are possible: what `require_dependent_launch` asks for."""
        try:
            self.require_dependent_launch()
        except Refusal:
            return False
        return True

    def require_dependent_launch(self) -> None:
        """Errors: Refusal below compute capability 9.0, or without cuda-bindings."""
        from dsv4.runtime import dependent

        dependent.require(self._device.compute_capability)

    def synchronize(self) -> None:
        """Wait for the device. Errors: LaunchError when a kernel failed."""
        try:
            self._device.synchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchError(
                f"a kernel failed on {self.name}: {error}\n"
                "  the context is lost; find the access with compute-sanitizer, or run"
                " kernel-diff --backend host --mode check"
            ) from None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Arrays' own operators inside the `with` run on this GPU, on its current stream."""
        with self._device:
            yield

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """A new stream, current inside the `with`; waits for it at the end."""
        with self._device, cupy.cuda.Stream(non_blocking=True) as stream:
            yield stream
            stream.synchronize()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture launches inside the `with` into a CUDA graph."""
        held = _Capture()
        with self._device:
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                try:
                    yield held
                except BaseException:
                    # Close the capture, or the stream stays unusable; the cause goes on.
                    with contextlib.suppress(Exception):
                        stream.end_capture()
                    raise
                held.graph = CudaGraph(stream.end_capture(), stream, self._device)

    def run_beside(self, branches: Sequence[Sequence[Callable[[], None]]]) -> None:
        """Run the first branch on the current stream and the others on streams beside it."""
        with self._device:
            while len(self._beside) < len(branches) - 1:
                self._beside.append(cupy.cuda.Stream(non_blocking=True))
            current = cupy.cuda.get_current_stream()
            begun = current.record(cupy.cuda.Event(disable_timing=True))
            ends = []
            for stream, branch in zip(self._beside, branches[1:], strict=False):
                with stream:
                    stream.wait_event(begun)
                    for run in branch:
                        run()
                    ends.append(stream.record(cupy.cuda.Event(disable_timing=True)))
            for run in branches[0]:
                run()
            for end in ends:
                current.wait_event(end)

    def gemm_bf16(self, w: Any, x: Any, out: Any) -> None:
        """out[m, n] = x[m, k] w[n, k]^T through cuBLAS, bf16 in, f32 accumulation and result."""
        with self._device:
            self._blas.gemm_bf16(w, x, out)

    def time_s(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Seconds of each repeat between two device events on the current stream."""
        with self._device:
            pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeats)]
            for begin, end in pairs:
                begin.record()
                work()
                end.record()
            self.synchronize()
            return [1e-3 * cupy.cuda.get_elapsed_time(b, e) for b, e in pairs]


@functools.cache
def cuda_device(index: int) -> CudaDevice:
    """The device object of that GPU, made once."""
    return CudaDevice(index)


@functools.cache
def loaded(index: int, cubin_path: str) -> Any:
    """The module of a cubin on that GPU, loaded once."""
    with cupy.cuda.Device(index):
        return cupy.RawModule(path=cubin_path)


@functools.cache
def _function(index: int, symbol: str, cubin_path: str) -> Any:
    with cupy.cuda.Device(index):
        return loaded(index, cubin_path).get_function(symbol)
