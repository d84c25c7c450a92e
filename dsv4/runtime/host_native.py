"""The C side of a compiled library: its structures, its functions, its faults.

The layouts mirror cuda/host/block.h.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dsv4.errors import CompileError
from dsv4.runtime.host_lines import read_line_table
from dsv4.runtime.probes import BUFFER

_CHAIN_LENGTH = 12


class Extent(ctypes.Structure):
    """The bytes of one array argument."""

    _fields_ = [
        ("first", ctypes.c_void_p),
        ("size_bytes", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
        ("argument", ctypes.c_int32),
        ("steady", ctypes.c_uint32),
    ]


class Launch(ctypes.Structure):
    """One launch as the runtime reads it."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("shuffle", ctypes.c_uint),
        ("dependent", ctypes.c_uint),
        ("passes_on", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("next_block", ctypes.POINTER(ctypes.c_uint64)),
        ("extents", ctypes.POINTER(Extent)),
        ("extent_count", ctypes.c_uint32),
        ("line_count", ctypes.c_uint32),
        ("lines", ctypes.c_void_p),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [("file", ctypes.c_uint32), ("line", ctypes.c_uint32)]


class _Chain(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("frames", _Frame * _CHAIN_LENGTH)]


class Fault(ctypes.Structure):
    """What the runtime leaves when a kernel failed; all zero when it did not."""

    _fields_ = [
        ("kind", ctypes.c_char * 32),
        ("text", ctypes.c_char * 512),
        ("file", ctypes.c_char * 512),
        ("line", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("code_offset", ctypes.c_uint64),
        ("here", _Chain),
        ("other", _Chain),
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """A source line, and the innermost helper's line when the access stands in one."""

    file: str
    line: int
    inside: str

    def __str__(self) -> str:
        """`file:line`, with the helper."""
        return f"{self.file}:{self.line}{self.inside}"


class Library:
    """One loaded copy of a compiled library."""

    def __init__(self, path: Path, lined: Callable[[], Path]) -> None:
        """Load it; the system gives every distinct file its own statics.

        lined: the path of a library with the same instructions and a table of their lines.
        """
        self.path = path
        self._lined = lined
        try:
            self.native = ctypes.CDLL(str(path))
        except OSError as error:
            raise CompileError(
                f"{path.name}: the compiled library cannot be loaded\n"
                f"  {error}\n"
                f"  in {path.parent}\n"
                "  delete that file; if it comes back broken, set DSV4_CXX to another compiler"
            ) from error
        self.native.dsv4_kernel_name.restype = ctypes.c_char_p
        self.native.dsv4_kernel_signature.restype = ctypes.c_char_p
        self.native.dsv4_static_shared_bytes.restype = ctypes.c_uint64
        self.static_shared_bytes: int = self.native.dsv4_static_shared_bytes()

    def kernels(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Number and signature of each kernel, by name, in the order of the source."""
        found: list[tuple[str, int, tuple[str, ...]]] = []
        while (name := self.native.dsv4_kernel_name(len(found))) is not None:
            text = self.native.dsv4_kernel_signature(len(found)).decode()
            found.append((name.decode(), len(found), tuple(text.split(",")) if text else ()))
        return {name: (number, signature) for name, number, signature in reversed(found)}

    def probe_buffer(self) -> np.ndarray | None:
        """The library's `lab_probe`, as an array of one; None when it was built without probes."""
        try:
            symbol = (ctypes.c_char * BUFFER.itemsize).in_dll(self.native, "lab_probe")
        except ValueError:
            return None
        return np.ndarray((1,), dtype=BUFFER, buffer=memoryview(symbol))

    @cached_property
    def _table(self) -> tuple[np.ndarray, tuple[str, ...]]:
        table = read_line_table(self._lined())
        row = np.dtype([("offset", "<u8"), ("file", "<u4"), ("line", "<u4")])
        return np.array(list(table.rows), dtype=row), table.files

    def give_lines(self, launch: Launch) -> None:
        """Let the checker turn addresses into lines."""
        rows, _ = self._table
        launch.lines = rows.ctypes.data
        launch.line_count = len(rows)

    def place(self, fault: Fault) -> Place:
        """Where the fault is: the `.cu` line, even when a helper of a header met it."""
        place = self._place(fault.here) or Place(fault.file.decode(), fault.line, "")
        if place.file or fault.code_offset == 0:
            return place
        rows, files = self._table
        row = rows[int(np.searchsorted(rows["offset"], fault.code_offset, side="right")) - 1]
        return Place(files[row["file"]], int(row["line"]), "")

    def other_place(self, fault: Fault) -> Place | None:
        """Where the other party of a race or of a divergence is."""
        return self._place(fault.other)

    def _place(self, chain: _Chain) -> Place | None:
        if chain.count == 0:
            return None
        files = self._table[1]
        frames = [(files[f.file], f.line) for f in chain.frames[: chain.count]]
        kernel = next((frame for frame in frames if frame[0].endswith(".cu")), frames[0])
        inner = next((frame for frame in frames if "/host/" not in frame[0]), kernel)
        inside = "" if inner == kernel else f" (inside {Path(inner[0]).name}:{inner[1]})"
        return Place(kernel[0], kernel[1], inside)
