"""Builds `.cu` files for the CPU and launches their kernels over NumPy arrays."""

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from dsv4.errors import KernelFault, LaunchError
from dsv4.runtime.host_arguments import Array, extents, pack
from dsv4.runtime.host_build import CpAsync, Mode, build_library, copy_of, ingredients
from dsv4.runtime.host_native import Fault, Launch, Library
from dsv4.runtime.probes import RECORD
from dsv4.runtime.sources import are_steady

__all__ = ["CpAsync", "HostModule", "Mode", "build"]

Triple = tuple[int, int, int]

_THREADS_PER_BLOCK = 1024
_SHARED_BYTES_PER_BLOCK = 227 * 1024
_BLOCKS_PER_CLUSTER = 16
# Waking a second worker costs 0.1 ms; below this many CUDA threads it does not pay.
_THREADS_WORTH_WORKERS = 16384

_modules: dict[Path, "HostModule"] = {}
_modules_lock = threading.Lock()
# What was built lately: the times of its files, and the module.
_builds: dict[object, tuple[tuple[tuple[Path, int], ...], "HostModule"]] = {}


def build(
    source: Path,
    *,
    defines: Mapping[str, int | float | str],
    mode: Mode = "run",
    cp_async: CpAsync = "eager",
) -> "HostModule":
    """The kernels of one `.cu`, compiled for this CPU or taken from the cache.

    mode "run" is fast; "shuffle" runs blocks and threads in a random order and poisons shared
    memory; "check" reports faults with their line. cp_async says when asynchronous copies land: at
    once, or as late as the wait allows.

    Errors: CompileError when there is no compiler or the source is rejected.
    """
    around = tuple(os.environ.get(name) for name in ("DSV4_CXX", "DSV4_CACHE", "PATH"))
    key = (source, frozenset(defines.items()), mode, cp_async, around)
    known = _builds.get(key)
    # An edit is still seen, at the price of file times instead of names and contents.
    if known is not None:
        if are_steady() or all(_modified_ns(path) == then for path, then in known[0]):
            return known[1]
    made = functools.partial(
        build_library, source, defines=dict(defines), mode=mode, cp_async=cp_async
    )
    library = made()
    with _modules_lock:
        if library not in _modules:
            _modules[library] = HostModule(
                source.resolve(), library, mode, functools.partial(made, lines=True)
            )
        module = _modules[library]
    stamps = tuple((path, _modified_ns(path)) for path in ingredients(source))
    # Files changed a moment ago could change again within one tick of the clock.
    if all(then < time.time_ns() - 2_000_000_000 for _, then in stamps):
        _builds[key] = (stamps, module)
    return module


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


class HostModule:
    """One compiled `.cu`: its kernels by name."""

    def __init__(self, source: Path, library: Path, mode: Mode, lined: Callable[[], Path]) -> None:
        """Load the library. lined: makes the same with its lines, once a fault asks for one."""
        self._source = source
        self._mode = mode
        self._lined = lined
        self._copies = [Library(library, lined)]
        self._lock = threading.Lock()
        self._kernels = self._copies[0].kernels()
        self.symbols = tuple(self._kernels)

    def signature(self, symbol: str) -> tuple[str, ...]:
        """The argument codes of a kernel, such as ("Pf4", "pu2", "i4").

        P is a const pointer, p a pointer; then f, i or u and the size in bytes. bf16 is u2.

        Errors: LaunchError when the file has no such kernel.
        """
        if symbol not in self._kernels:
            raise LaunchError(
                f"{symbol}: no such kernel\n"
                f"  found {', '.join(self.symbols)}\n"
                f"  in {self._source}\n"
                "  pass one of these names"
            )
        return self._kernels[symbol][1]

    def launch(
        self,
        symbol: str,
        *,
        grid: Triple,
        block: Triple,
        shared_bytes: int = 0,
        args: Sequence[Array | np.generic],
        seed: int = 0,
        workers: int | None = None,
        steady: Sequence[bool] | None = None,
        cluster: int = 1,
        passes_on: bool = False,
    ) -> None:
        """Run a kernel over the whole grid and return when it is done.

        Arrays go by pointer to their first element; check mode allows exactly the bytes that the
        view spans. Scalars must have the declared type. seed picks the order in shuffle mode, and
        in check mode when it is not 0. More than one worker is used in run mode only; then float
        atomics add up in no fixed order. steady: for a dependent launch, which arguments it may
        read before wait_for_previous; check mode then holds it to the rules of common/overlap.cuh.
        passes_on: the next one must not begin before this one's wait. cluster: blocks that take
        turns, neighbours along x.

        Errors: LaunchError for arguments or sizes that do not fit, before anything runs;
        KernelFault when the kernel fails.
        """
        signature = self.signature(symbol)
        self._check_sizes(symbol, grid, block, shared_bytes, cluster)
        words = pack(symbol, signature, args)
        launch = Launch(
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            shuffle=self._mode == "shuffle" or (self._mode == "check" and seed != 0),
            seed=seed & (2**64 - 1),
            dependent=steady is not None,
            passes_on=passes_on,
            cluster=cluster,
            next_block=ctypes.pointer(ctypes.c_uint64(0)),
        )
        clusters, threads = _product(grid) // cluster, _product(block) * cluster
        worker_count = self._worker_count(workers, clusters, threads)
        with self._lock:
            if self._mode == "check":
                spans = extents(signature, args, steady or ())
                launch.extents = spans
                launch.extent_count = sum(isinstance(arg, np.ndarray) for arg in args)
                self._copies[0].give_lines(launch)
            fault = self._run(self._kernels[symbol][0], words, launch, worker_count)
        if fault is not None:
            raise self._kernel_fault(symbol, fault)

    def launch_probed(
        self,
        symbol: str,
        *,
        capacity: int,
        grid: Triple,
        block: Triple,
        shared_bytes: int = 0,
        args: Sequence[Array | np.generic],
        seed: int = 0,
        cluster: int = 1,
    ) -> tuple[Array, int]:
        """The probe records of one launch, sorted by stage and index, and how many values were met.

        The records have the dtype `probes.RECORD`; beyond the capacity values are only counted.

        Errors: as launch, and LaunchError when the source was built without LAB_PROBE.
        """
        buffer = self._copies[0].probe_buffer()
        if buffer is None:
            raise LaunchError(
                f"{symbol}: probes were asked for\n"
                "  found a build without them\n"
                f"  kernel of {self._source}\n"
                '  build with defines={"LAB_PROBE": 1} and include common/probe.cuh'
            )
        records = np.zeros(capacity, dtype=RECORD)
        buffer[0] = (0, capacity, records.ctypes.data)
        try:
            self.launch(
                symbol,
                grid=grid,
                block=block,
                shared_bytes=shared_bytes,
                args=args,
                seed=seed,
                workers=1,
                cluster=cluster,
            )
            met = int(buffer["count"][0])
        finally:
            buffer[0] = (0, 0, 0)
        kept = records[: min(met, capacity)]
        return kept[np.argsort(kept, order=("stage", "index"), kind="stable")], met

    def _run(
        self,
        number: int,
        words: "ctypes.Array[ctypes.c_uint64]",
        launch: Launch,
        worker_count: int,
    ) -> Fault | None:
        """The fault of the first worker that met one; each takes blocks until none is left."""
        while len(self._copies) < worker_count:
            copy = copy_of(self._copies[0].path, len(self._copies))
            self._copies.append(Library(copy, self._lined))
        faults = [Fault() for _ in range(worker_count)]

        def work(worker: int) -> None:
            self._copies[worker].native.dsv4_launch(
                number, words, ctypes.byref(launch), ctypes.byref(faults[worker])
            )

        running = [_pool().submit(work, worker) for worker in range(1, worker_count)]
        work(0)
        for future in running:
            future.result()
        return next((fault for fault in faults if fault.kind), None)

    def _worker_count(self, asked: int | None, blocks: int, threads: int) -> int:
        if self._mode != "run":
            return 1
        if asked is not None:
            return max(1, min(asked, blocks))
        if blocks * threads < _THREADS_WORTH_WORKERS:
            return 1
        return min(2, os.cpu_count() or 1, blocks)

    def _check_sizes(
        self, symbol: str, grid: Triple, block: Triple, shared_bytes: int, cluster: int
    ) -> None:
        threads = _product(block)
        shared = shared_bytes + self._copies[0].static_shared_bytes
        if min(*grid, *block) < 1 or threads > _THREADS_PER_BLOCK or shared_bytes < 0:
            found = f"grid {grid}, block {block} ({threads} threads), {shared_bytes} shared bytes"
        elif shared > _SHARED_BYTES_PER_BLOCK:
            found = f"{shared} bytes of shared memory, {shared - shared_bytes} of them static"
        elif not 1 <= cluster <= _BLOCKS_PER_CLUSTER or grid[0] % cluster:
            found = f"clusters of {cluster} blocks in a grid of {grid}"
        else:
            return
        raise LaunchError(
            f"{symbol}: the launch is not possible\n"
            f"  found {found}\n"
            f"  kernel of {self._source}\n"
            f"  make every extent at least 1, a block at most {_THREADS_PER_BLOCK} threads, its "
            f"shared memory at most {_SHARED_BYTES_PER_BLOCK} bytes, and a grid's x whole clusters "
            f"of at most {_BLOCKS_PER_CLUSTER} blocks"
        )

    def _kernel_fault(self, symbol: str, fault: Fault) -> KernelFault:
        block = (fault.block[0], fault.block[1], fault.block[2])
        thread = (fault.thread[0], fault.thread[1], fault.thread[2])
        kind = fault.kind.decode()
        place = self._copies[0].place(fault)
        file = place.file or str(self._source)
        other = self._copies[0].other_place(fault)
        advice = (
            "correct the kernel, or the shapes it was launched with"
            if self._mode == "check"
            else 'build it with mode="check" to find the cause'
        )
        return KernelFault(
            f"{symbol}: {kind}: {fault.text.decode(errors='replace')}\n"
            + f"  at {place if place.file else file}, block {block}, thread {thread}\n"
            + (f"  the other party is at {other}\n" if other is not None else "")
            + f"  {advice}",
            kind=kind,
            file=file,
            line=place.line,
            block=block,
            thread=thread,
        )


def _product(extent: Triple) -> int:
    return extent[0] * extent[1] * extent[2]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="host-worker")
