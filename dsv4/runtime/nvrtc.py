"""NVRTC to cubin, with a cache that knows the included headers. Needs CuPy but no GPU.

CuPy's own `RawModule(code=...)` appends flush-to-zero and does not see edited headers; here the
options are ours and the cache key covers the source, everything it includes, options, architecture
and compiler version.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import CompileError, DeviceError
from dsv4.runtime.elf import taken
from dsv4.runtime.sources import cuda_root, digest, include_closure

# No contraction, no flush-to-zero, accurate division and square root: the same bits as the CPU.
_OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--generate-line-info",
    "--ptxas-options=-v",
)
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel of a cubin uses on the device."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """One compiled source: where the binary lies and what the assembler said."""

    path: Path
    digest: str
    arch: str
    log: str
    cached: bool

    def resources(self) -> dict[str, Resources]:
        """Registers, shared memory and spills by symbol.

        Only the assembler's log tells spills from other stack; where several kernels were assembled
        side by side and it does not, the whole stack counts as spilled.
        """
        spilled = _spills(self.log)
        return {
            symbol: Resources(
                used.registers,
                used.shared_bytes,
                used.stack_bytes,
                spilled.get((symbol, used.stack_bytes), used.stack_bytes),
            )
            for symbol, used in taken(self.path.read_bytes()).items()
        }

    def warnings(self) -> list[str]:
        """Compiler warnings, one line each."""
        return [line.strip() for line in self.log.splitlines() if "warning" in line.lower()]


def cache_root() -> Path:
    """Where compiled kernels are kept: `DSV4_CACHE`, or `~/.cache/dsv4-lab`."""
    return Path(os.environ.get("DSV4_CACHE", Path.home() / ".cache" / "dsv4-lab"))


@functools.lru_cache(maxsize=1)
def _nvrtc() -> Any:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # ImportError, or CuPy's error for a missing library
        raise DeviceError(
            f"compiling for CUDA needs CuPy and NVRTC, and they cannot be loaded ({error})\n"
            "  install the extra `compile` without a GPU, `cuda12` or `cuda13` with one;"
            " dsv4-lab doctor prints the pip line"
        ) from None
    return nvrtc


def nvrtc_version() -> str:
    """The NVRTC version, such as "12.9". Errors: DeviceError when it is missing."""
    major, minor = _nvrtc().getVersion()
    return f"{major}.{minor}"


def compile_cubin(
    source: Path, *, defines: Mapping[str, int | float | str], arch: str, line_info: bool = True
) -> Cubin:
    """The cubin of a `.cu` for one architecture, from the cache or freshly built.

    line_info: off for comparing code, because the assembler's schedule depends on line numbers.
    Errors: CompileError with the compiler's own lines; DeviceError when NVRTC is missing.
    """
    options = _options(defines, arch, line_info)
    # The include path differs between machines and changes nothing that the digest does not see.
    named = [o for o in options if not o.startswith("--include-path")]
    key = digest(include_closure(source), "\n".join([*named, nvrtc_version()]))
    folder = cache_root() / "cubin"
    path = folder / f"{source.stem}-{arch}-{key[:32]}.cubin"
    log_path = path.with_suffix(".log")
    if path.exists() and log_path.exists():
        return Cubin(path, _sha256(path.read_bytes()), arch, log_path.read_text(), True)
    with _compiled(source, defines, arch, line_info) as program:
        binary, log = _whole_elf(_nvrtc().getCUBIN(program)), _nvrtc().getProgramLog(program)
    folder.mkdir(parents=True, exist_ok=True)
    _write_atomically(log_path, log.encode())
    _write_atomically(path, binary)
    return Cubin(path, _sha256(binary), arch, log, False)


def compile_ptx(source: Path, *, defines: Mapping[str, int | float | str], arch: str) -> str:
    """The PTX of a `.cu` for one architecture, freshly built with the options of the cubin.

    Errors: CompileError with the compiler's own lines; DeviceError when NVRTC is missing.
    """
    with _compiled(source, defines, arch) as program:
        text: bytes = _nvrtc().getPTX(program)
    return text.decode().rstrip("\0")


def _options(
    defines: Mapping[str, int | float | str], arch: str, line_info: bool = True
) -> list[str]:
    return [
        *(o for o in _OPTIONS if line_info or o != "--generate-line-info"),
        f"--gpu-architecture={arch}",
        f"--include-path={cuda_root()}",
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
    ]


@contextlib.contextmanager
def _compiled(
    source: Path,
    defines: Mapping[str, int | float | str],
    arch: str,
    line_info: bool = True,
) -> Iterator[Any]:
    """The compiled program, destroyed at the end of the `with`."""
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(source.read_text(), str(source), [], [])
    try:
        try:
            nvrtc.compileProgram(program, _options(defines, arch, line_info))
        except Exception as error:
            log = nvrtc.getProgramLog(program)
            raise _failure(source, arch, defines, log or str(error)) from None
        yield program
    finally:
        nvrtc.destroyProgram(program)


def _whole_elf(binary: bytes) -> bytes:
    """The cubin with the last byte that CuPy's getCUBIN drops.

    CuPy takes the size for that of a text with its closing zero. The driver loads the short file;
    disassemblers refuse it, because the program header table, which ends the file, is cut.
    """
    table, entry_bytes, entries = struct.unpack_from("<32xQ14xHH", binary)
    return binary.ljust(table + entry_bytes * entries, b"\0")


def _failure(
    source: Path, arch: str, defines: Mapping[str, int | float | str], log: str
) -> CompileError:
    errors = [line for line in log.splitlines() if "error" in line] or log.splitlines()
    shown = "\n".join(f"  {line}" for line in errors[:8])
    settings = " ".join(f"-D{k}={v}" for k, v in sorted(defines.items())) or "no build constants"
    return CompileError(
        f"{source.name} does not compile for {arch} ({settings})\n{shown}\n"
        f"  the source is {source}; fix the lines named above"
    )


def _spills(log: str) -> dict[tuple[str, int], int]:
    """Bytes stored and loaded by spills, by kernel and stack, of lines that stand together."""
    pattern = (
        r"Function properties for '?(\w+)'?\n[^\n]*?(\d+) bytes stack frame,"
        r" (\d+) bytes spill stores, (\d+) bytes spill loads"
    )
    return {(m[1], int(m[2])): int(m[3]) + int(m[4]) for m in re.finditer(pattern, log)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
