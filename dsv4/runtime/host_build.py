"""Compiles one `.cu` into a shared library for this CPU, through a cache on disk.

The cache key covers everything that reaches the binary: the sources and what they include, the shim
and runtime, this file and the rewriting, every flag, the mode, the compiler's version and the
processor.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dsv4.runtime.host_compiler import Compiler, find_compiler, run_compiler
from dsv4.runtime.host_source import define_lines, rewrite
from dsv4.runtime.sources import cuda_root, digest, include_closure

Mode = Literal["run", "shuffle", "check"]
CpAsync = Literal["eager", "deferred"]

# The numerics of the device: no contraction, no fast-math, and aliasing as kernels assume it.
_COMMON_FLAGS = (
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
# They change no instruction, and take a quarter of a build's time.
_LINE_FLAGS = ("-g1", "-gdwarf-4")
# Every helper stays a call with a frame, so that a fault can be traced out to the kernel's line.
_CHECK_FLAGS = (
    "-O1",
    "-fno-inline",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fsanitize=thread",
    "-fsanitize=bounds,alignment",
)
_CHECK_FLAGS_OF_FAMILY = {
    "gcc": ("--param=tsan-instrument-func-entry-exit=0",),
    "clang": (
        "-mllvm",
        "-tsan-instrument-func-entry-exit=0",
        "-mllvm",
        "-tsan-instrument-atomics=0",
        "-mllvm",
        "-tsan-instrument-read-before-write=1",
    ),
}
_RUNTIME_FILES = ("launch.cpp", "scheduler.cpp", "collectives.cpp", "cluster.cpp", "signals.cpp")
_CHECKER_FILES = ("checker.cpp", "order.cpp", "shadow.cpp", "sites.cpp", "receivers.cpp")


def build_library(
    source: Path,
    *,
    defines: Mapping[str, int | float | str],
    mode: Mode,
    cp_async: CpAsync,
    lines: bool = False,
) -> Path:
    """The path of the shared library, compiled now or earlier.

    lines: with the table that says which line an instruction is of; check mode has it always.
    Errors: CompileError when there is no compiler or the source is rejected.
    """
    compiler = find_compiler()
    source = source.resolve()
    flags = (*_COMMON_FLAGS, *_mode_flags(compiler, mode))
    if cp_async == "deferred":
        flags = (*flags, "-DDSV4_CP_ASYNC_DEFERRED=1")
    if lines or mode == "check":
        flags = (*flags, *_LINE_FLAGS)
    constants = define_lines(defines)
    key = digest(
        ingredients(source),
        "\0".join((compiler.identity, *compiler.compile, *flags, constants, mode, str(source))),
    )
    library = cache_folder() / f"{source.stem}-{mode}-{key[:32]}.so"
    if not library.is_file():
        _compile(compiler, source, constants, flags, mode, library)
    return library


def ingredients(source: Path) -> tuple[Path, ...]:
    """Every file whose content reaches the library of that source."""
    return (*include_closure(source), *_shim_files())


def cache_folder() -> Path:
    """The folder of compiled libraries: `host` in DSV4_CACHE, or in the user's cache."""
    named = os.environ.get("DSV4_CACHE")
    folder = (Path(named) if named else Path.home() / ".cache" / "dsv4-lab") / "host"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy_of(library: Path, number: int) -> Path:
    """Another file with the library's content, which the system loads with statics of its own."""
    path = library.with_suffix(f".{number}.so")
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="copy-") as name:
            copied = Path(name) / path.name
            shutil.copyfile(library, copied)
            copied.replace(path)
    return path


def _shim_files() -> tuple[Path, ...]:
    """What every kernel is made with: shim and runtime, and the steps of the build itself."""
    here = Path(__file__)
    folder = cuda_root() / "host"
    return (here, here.with_name("host_source.py"), *_files_of(folder, folder.stat().st_mtime_ns))


@lru_cache(maxsize=4)
def _files_of(folder: Path, modified_ns: int) -> tuple[Path, ...]:
    """The files of a folder; its time changes when one comes or goes."""
    return tuple(sorted(folder.glob("*.*")))


def _mode_flags(compiler: Compiler, mode: Mode) -> tuple[str, ...]:
    native = ("-march=native",) if compiler.native else ()
    if mode == "check":
        return (*native, *_CHECK_FLAGS, *_CHECK_FLAGS_OF_FAMILY[compiler.family], "-DDSV4_CHECK=1")
    if mode == "shuffle":
        # It looks for what depends on order, and its builds are half of a test's first run.
        return (*native, "-O1")
    return (*native, "-O2", "-DDSV4_HOST_FAST=1")


def _compile(
    compiler: Compiler,
    source: Path,
    constants: str,
    flags: tuple[str, ...],
    mode: Mode,
    library: Path,
) -> None:
    root = cuda_root()
    command = (*compiler.compile, *flags)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as name:
        folder = Path(name)
        # The constants come after the shim: a constant called N must not reach its templates.
        constants_file = folder / "constants.h"
        constants_file.write_text(constants, encoding="utf-8")
        shim = root / "host" / "cuda_host.h"
        includes = ("-I", str(root), "-include", str(shim), "-include", str(constants_file))
        preprocessed = run_compiler(
            (*command, "-E", "-x", "c++", *includes, str(source)), source, folder
        )
        rewritten = folder / "kernel.cpp"
        rewritten.write_text(rewrite(preprocessed, source), encoding="utf-8")
        kernel = folder / "kernel.o"
        run_compiler((*command, "-c", str(rewritten), "-o", str(kernel)), source, folder)
        linked = folder / library.name
        objects = (kernel, *_runtime_objects(compiler, mode))
        run_compiler(
            (
                *compiler.link,
                "-shared",
                *map(str, objects),
                *compiler.link_flags,
                "-o",
                str(linked),
            ),
            source,
            folder,
        )
        linked.replace(library)


def _runtime_objects(compiler: Compiler, mode: Mode) -> list[Path]:
    """The objects of scheduler and checker, which are the same for every kernel of a mode."""
    checking = mode == "check"
    flags = [*_COMMON_FLAGS, *_LINE_FLAGS, "-O2", "-fno-omit-frame-pointer"]
    if checking:
        flags.append("-DDSV4_CHECK=1")
    command = (*compiler.compile, *flags)
    key = digest(_shim_files(), "\0".join((compiler.identity, *command)))
    objects = []
    for name in (*_RUNTIME_FILES, *(_CHECKER_FILES if checking else ())):
        file = cuda_root() / "host" / name
        target = cache_folder() / f"{file.stem}-{key[:32]}.o"
        if not target.is_file():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
                made = Path(folder) / target.name
                run_compiler((*command, "-c", str(file), "-o", str(made)), file, Path(folder))
                made.replace(target)
        objects.append(target)
    return objects
