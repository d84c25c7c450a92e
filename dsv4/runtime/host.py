"""Builds `.cu` files for the CPU and launches their kernels over NumPy arrays."""

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dsv4.errors import KernelFault, LaunchError
from dsv4.runtime import host_compiler, host_source, sources

Mode = Literal["run", "shuffle", "check"]
CpAsync = Literal["eager", "deferred"]
Triple = tuple[int, int, int]
Array = npt.NDArray[Any]

_THREADS_PER_BLOCK = 1024
_SHARED_BYTES_PER_BLOCK = 227 * 1024
# Waking a second worker costs 0.1 ms; below this many CUDA threads it does not pay.
_THREADS_WORTH_WORKERS = 16384
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fsigned-char",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-w",
)
_RUNTIME_FILES = ("runtime.cpp",)


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
    compiler = host_compiler.find_compiler()
    flags = _mode_flags(compiler, mode, cp_async)
    constants = host_source.define_lines(defines)
    key = sources.digest(
        (*sources.include_closure(source), *_shim_files()),
        "\0".join(
            (compiler.identity, *compiler.compile, *_FLAGS, *flags, constants, mode, str(source.resolve()))
        ),
    )
    with _modules_lock:
        module = _modules.get(key)
        if module is None:
            library = cache_folder() / f"{source.stem}-{mode}-{key[:32]}.so"
            if not library.is_file():
                _compile(compiler, source.resolve(), constants, flags, library)
            module = _modules[key] = HostModule(source.resolve(), library, mode)
    return module


def cache_folder() -> Path:
    """The folder of compiled libraries: `host` in DSV4_CACHE, or in the user's cache."""
    named = os.environ.get("DSV4_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "dsv4-lab"
    folder = folder / "host"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_modules: dict[str, "HostModule"] = {}
_modules_lock = threading.Lock()


def _shim_files() -> tuple[Path, ...]:
    return tuple(sorted((sources.cuda_root() / "host").iterdir()))


def _mode_flags(compiler: host_compiler.Compiler, mode: Mode, cp_async: CpAsync) -> tuple[str, ...]:
    flags = ["-O2"]
    if compiler.native:
        flags.append("-march=native")
    if mode == "run":
        flags.append("-DDSV4_HOST_FAST=1")
    if cp_async == "deferred":
        flags.append("-DDSV4_CP_ASYNC_DEFERRED=1")
    return tuple(flags)


def _compile(
    compiler: host_compiler.Compiler,
    source: Path,
    constants: str,
    flags: tuple[str, ...],
    library: Path,
) -> None:
    root = sources.cuda_root()
    shim = root / "host" / "cuda_host.h"
    common = (*compiler.compile, *_FLAGS, *flags)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as name:
        folder = Path(name)
        # The constants come after the shim: a constant called N must not reach its templates.
        constants_file = folder / "constants.h"
        constants_file.write_text(constants, encoding="utf-8")
        includes = ("-I", str(root), "-include", str(shim), "-include", str(constants_file))
        preprocessed = host_compiler.run_compiler(
            (*common, "-E", "-x", "c++", *includes, str(source)), source
        )
        text, _ = host_source.rewrite(preprocessed, source)
        rewritten = folder / "kernel.ii"
        rewritten.write_text(text, encoding="utf-8")
        objects = [folder / "kernel.o"]
        host_compiler.run_compiler(
            (*common, "-x", "c++-cpp-output", "-c", str(rewritten), "-o", str(objects[0])), source
        )
        for file in _RUNTIME_FILES:
            objects.append(folder / f"{file}.o")
            host_compiler.run_compiler(
                (*common, "-c", str(root / "host" / file), "-o", str(objects[-1])), source
            )
        linked = folder / "kernel.so"
        host_compiler.run_compiler(
            (*compiler.link, "-shared", *compiler.link_flags, *map(str, objects), "-o", str(linked)),
            source,
        )
        linked.rename(library)


class _Extent(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p),
        ("size_bytes", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
        ("argument", ctypes.c_int32),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("shuffle", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("next_block", ctypes.POINTER(ctypes.c_uint64)),
        ("extents", ctypes.POINTER(_Extent)),
        ("extent_count", ctypes.c_uint32),
    ]


class _Chain(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("offsets", ctypes.c_uint64 * 12)]


class _Fault(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char * 32),
        ("text", ctypes.c_char * 512),
        ("file", ctypes.c_char * 512),
        ("line", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("here", _Chain),
        ("other", _Chain),
    ]


def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    loaded.dsv4_kernel_name.restype = ctypes.c_char_p
    loaded.dsv4_kernel_signature.restype = ctypes.c_char_p
    loaded.dsv4_static_shared_bytes.restype = ctypes.c_uint64
    return loaded


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="host-worker")


class HostModule:
    """One compiled `.cu`: its kernels by name."""

    def __init__(self, source: Path, library: Path, mode: Mode) -> None:
        """Load the library."""
        self._source = source
        self._library = library
        self._mode = mode
        self._copies = [_load(library)]
        self._lock = threading.Lock()
        self._signatures: dict[str, tuple[str, ...]] = {}
        self._numbers: dict[str, int] = {}
        number = 0
        while (name := self._copies[0].dsv4_kernel_name(number)) is not None:
            text = self._copies[0].dsv4_kernel_signature(number).decode()
            self._signatures[name.decode()] = tuple(text.split(",")) if text else ()
            self._numbers[name.decode()] = number
            number += 1
        self.symbols = tuple(self._signatures)

    def signature(self, symbol: str) -> tuple[str, ...]:
        """The argument codes of a kernel, such as ("Pf4", "pu2", "i4").

        P is a const pointer, p a pointer; then f, i or u and the size in bytes. bf16 is u2.

        Errors: LaunchError when the file has no such kernel.
        """
        if symbol not in self._signatures:
            raise LaunchError(
                f"{symbol}: no such kernel\n"
                f"  {self._source} has: {', '.join(self.symbols)}\n"
                "  pass one of these names"
            )
        return self._signatures[symbol]

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
    ) -> None:
        """Run a kernel over the whole grid and return when it is done.

        Arrays go by pointer to their first element; check mode allows exactly the bytes that the
        view spans. Scalars must have the declared type. seed picks the order in shuffle mode.

        Errors: LaunchError for arguments or sizes that do not fit, before anything runs;
        KernelFault when the kernel fails.
        """
        signature = self.signature(symbol)
        self._check_sizes(symbol, grid, block, shared_bytes)
        values = (ctypes.c_uint64 * max(1, len(args)))()
        extents = (_Extent * max(1, len(args)))()
        extent_count = self._pack(symbol, signature, args, values, extents)
        next_block = ctypes.c_uint64(0)
        launch = _Launch(
            grid,
            block,
            shared_bytes,
            int(self._mode == "shuffle" or (self._mode == "check" and seed != 0)),
            seed & (2**64 - 1),
            ctypes.pointer(next_block),
            extents,
            extent_count,
        )
        blocks = grid[0] * grid[1] * grid[2]
        worker_count = self._worker_count(workers, blocks, block[0] * block[1] * block[2])
        number = self._numbers[symbol]
        with self._lock:
            if worker_count == 1:
                faults = [_Fault()]
                self._copies[0].dsv4_launch(
                    number, values, ctypes.byref(launch), ctypes.byref(faults[0])
                )
            else:
                copies = self._load_copies(worker_count)
                faults = [_Fault() for _ in copies]
                running = [
                    _pool().submit(
                        copy.dsv4_launch, number, values, ctypes.byref(launch), ctypes.byref(fault)
                    )
                    for copy, fault in zip(copies[1:], faults[1:], strict=True)
                ]
                copies[0].dsv4_launch(
                    number, values, ctypes.byref(launch), ctypes.byref(faults[0])
                )
                for future in running:
                    future.result()
        for fault in faults:
            if fault.kind:
                raise self._kernel_fault(symbol, fault)

    def _worker_count(self, asked: int | None, blocks: int, threads: int) -> int:
        if self._mode != "run":
            return 1
        if asked is not None:
            return max(1, min(asked, blocks))
        if blocks * threads < _THREADS_WORTH_WORKERS:
            return 1
        return min(2, os.cpu_count() or 1, blocks)

    def _load_copies(self, count: int) -> list[ctypes.CDLL]:
        while len(self._copies) < count:
            path = self._library.with_suffix(f".{len(self._copies)}.so")
            if not path.is_file():
                descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="copy-")
                os.close(descriptor)
                shutil.copyfile(self._library, name)
                Path(name).rename(path)
            self._copies.append(_load(path))
        return self._copies[:count]

    def _check_sizes(self, symbol: str, grid: Triple, block: Triple, shared_bytes: int) -> None:
        threads = block[0] * block[1] * block[2]
        shared = shared_bytes + self._copies[0].dsv4_static_shared_bytes()
        if min(*grid, *block) < 1 or threads > _THREADS_PER_BLOCK or shared_bytes < 0:
            found = f"grid {grid}, block {block} ({threads} threads), {shared_bytes} shared bytes"
        elif shared > _SHARED_BYTES_PER_BLOCK:
            found = f"{shared} bytes of shared memory, static included"
        else:
            return
        raise LaunchError(
            f"{symbol}: the launch does not fit a block\n"
            f"  found {found}\n"
            f"  kernel of {self._source}\n"
            f"  every extent is at least 1; a block has at most {_THREADS_PER_BLOCK} threads and "
            f"{_SHARED_BYTES_PER_BLOCK} bytes of shared memory"
        )

    def _pack(
        self,
        symbol: str,
        signature: tuple[str, ...],
        args: Sequence[Array | np.generic],
        values: Any,
        extents: Any,
    ) -> int:
        if len(args) != len(signature):
            raise LaunchError(
                f"{symbol}: the kernel takes {len(signature)} arguments, {len(args)} were passed\n"
                f"  signature: {', '.join(signature)}\n"
                f"  kernel of {self._source}\n"
                "  pass one array or NumPy scalar for each"
            )
        count = 0
        for i, (code, arg) in enumerate(zip(signature, args, strict=True)):
            problem = _misfit(code, arg)
            if problem is not None:
                raise LaunchError(
                    f"{symbol}: argument {i} does not fit {_spelled(code)}\n"
                    f"  found {problem}\n"
                    f"  kernel of {self._source}; its signature is {', '.join(signature)}\n"
                    f"  pass {_wanted(code)}"
                )
            if isinstance(arg, np.ndarray):
                address = arg.__array_interface__["data"][0]
                values[i] = address
                if self._mode == "check":
                    low, size = _span(arg)
                    extents[count] = _Extent(
                        address + low, size, arg.itemsize, int(code[0] == "p"), i
                    )
                    count += 1
            else:
                values[i] = int.from_bytes(arg.tobytes(), "little")
        return count

    def _kernel_fault(self, symbol: str, fault: _Fault) -> KernelFault:
        block = (fault.block[0], fault.block[1], fault.block[2])
        thread = (fault.thread[0], fault.thread[1], fault.thread[2])
        file, line = fault.file.decode(), fault.line
        return KernelFault(
            f"{symbol}: {fault.kind.decode()}: {fault.text.decode()}\n"
            f"  at {file}:{line}, block {block}, thread {thread}\n"
            f"  kernel of {self._source}\n"
            "  correct the kernel, or the shapes it was launched with",
            kind=fault.kind.decode(),
            file=file,
            line=line,
            block=block,
            thread=thread,
        )


def _misfit(code: str, arg: object) -> str | None:
    """What is wrong with the argument, or None."""
    if code[0] not in "pP":
        if not isinstance(arg, np.generic):
            return f"{type(arg).__name__}, not a NumPy scalar"
        return None if _fits(code, arg.dtype) else f"a NumPy scalar of {arg.dtype}"
    if not isinstance(arg, np.ndarray):
        return f"{type(arg).__name__}, not a NumPy array"
    if code[1:] != "v" and not _fits(code[1:], arg.dtype):
        return f"an array of {arg.dtype}"
    if code[0] == "p" and not arg.flags.writeable:
        return "a read-only array for a pointer that is not const"
    return None


def _fits(code: str, dtype: np.dtype[Any]) -> bool:
    kinds = {"f": "f", "i": "i", "u": "u"}
    if not dtype.isnative or dtype.itemsize != int(code[1:]):
        return False
    return dtype.kind == kinds[code[0]] or (dtype.kind == "b" and code == "u1")


def _spelled(code: str) -> str:
    words = {"f": "float", "i": "int", "u": "uint"}
    if code[0] in "pP":
        const = "const " if code[0] == "P" else ""
        target = "void" if code[1:] == "v" else _spelled(code[1:])
        return f"{const}{target}*"
    return f"{words[code[0]]}{8 * int(code[1:])}"


def _wanted(code: str) -> str:
    if code[0] not in "pP":
        return f"np.{_spelled(code)}(value)"
    return "any array" if code[1:] == "v" else f"an array of np.{_spelled(code[1:])}"


def _span(array: Array) -> tuple[int, int]:
    """The lowest byte relative to the first element, and the number of bytes spanned."""
    if array.size == 0:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(min(0, step) for step in steps)
    high = sum(max(0, step) for step in steps) + array.itemsize
    return low, high - low
