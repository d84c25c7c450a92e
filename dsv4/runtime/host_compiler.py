"""Finds a C++ compiler for the host backend and runs it."""

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dsv4.errors import CompileError

_CANDIDATES = ("g++", "clang++", "c++")
_NO_UNDEFINED = ("-Wl,-z,defs",)
_SHOWN_ERRORS = 5
_ERROR_LINE = re.compile(r"\berror\b|undefined (reference|symbol)")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A usable C++ compiler.

    compile and link are the command prefixes; link_flags come after them. `identity` is the version
    line and the processor, because -march=native makes code for this one.
    """

    compile: tuple[str, ...]
    link: tuple[str, ...]
    link_flags: tuple[str, ...]
    family: Literal["gcc", "clang"]
    native: bool
    identity: str


def find_compiler() -> Compiler:
    """The compiler named by DSV4_CXX, else g++, clang++ or c++ on the path, else ziglang's.

    DSV4_CXX is a command with optional arguments, or the word `ziglang` for that wheel's.

    Errors: CompileError naming all these ways when there is none.
    """
    return _find_compiler(os.environ.get("DSV4_CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find_compiler(named: str, search_path: str) -> Compiler:
    if named == "ziglang":
        return _ziglang()
    if named:
        command = tuple(shlex.split(named))
        if shutil.which(command[0], path=search_path) is None:
            raise CompileError(
                f"host backend: the compiler DSV4_CXX={named} was not found\n"
                f"  searched PATH={search_path}\n"
                "  set DSV4_CXX to g++ or clang++, or unset it"
            )
        return _describe(command, command, _NO_UNDEFINED)
    for name in _CANDIDATES:
        if shutil.which(name, path=search_path) is not None:
            return _describe((name,), (name,), _NO_UNDEFINED)
    if importlib.util.find_spec("ziglang") is not None:
        return _ziglang()
    raise CompileError(
        "host backend: a C++ compiler is needed to run .cu files on the CPU, and none was found\n"
        f"  looked for DSV4_CXX, for {', '.join(_CANDIDATES)} and for the ziglang wheel\n"
        f"  in PATH={search_path} and among the packages of {sys.executable}\n"
        "  install g++ or clang++, or `pip install ziglang`, or set DSV4_CXX to a compiler"
    )


def forget_compilers() -> None:
    """Look again at the next build, for a changed system."""
    _find_compiler.cache_clear()


def _ziglang() -> Compiler:
    zig = (sys.executable, "-m", "ziglang")
    # Linking with `zig c++` would build libc++ first; our objects need none of it.
    return _describe((*zig, "c++"), (*zig, "cc"), ("-nostdlib",))


def _describe(
    compile_command: tuple[str, ...], link: tuple[str, ...], link_flags: tuple[str, ...]
) -> Compiler:
    version = _run((*compile_command, "--version"), "asking for its version").splitlines()[0]
    macros = _run((*compile_command, "-dM", "-E", "-x", "c++", os.devnull), "asking for its macros")
    native_try = (*compile_command, "-march=native", "-E", "-x", "c++", os.devnull)
    native = subprocess.run(native_try, capture_output=True, check=False).returncode == 0
    return Compiler(
        compile=compile_command,
        link=link,
        link_flags=link_flags,
        family="clang" if "__clang__" in macros else "gcc",
        native=native,
        identity=f"{version}\n{platform.machine()}\n{_processor()}",
    )


def _processor() -> str:
    """The processor's model and features; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = dict.fromkeys(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE))
    return "\n".join(lines)


def _run(command: Sequence[str], purpose: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(
            f"host backend: the compiler could not be started, {purpose}\n  {error}\n"
            f"  command: {shlex.join(command)}\n  set DSV4_CXX to a working compiler"
        ) from error
    if done.returncode != 0:
        raise CompileError(
            f"host backend: the compiler failed, {purpose}\n  {done.stderr.strip()[:500]}\n"
            f"  command: {shlex.join(command)}\n  set DSV4_CXX to a working compiler"
        )
    return done.stdout


def run_compiler(command: Sequence[str], source: Path, folder: Path) -> str:
    """The standard output of one compiler command, run in `folder`.

    A temporary folder, because clang++ writes paths below its working folder as relative ones.

    Errors: CompileError with the compiler's first errors, which carry the `.cu` path and line.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode == 0:
        return done.stdout
    errors = [line for line in done.stderr.splitlines() if _ERROR_LINE.search(line)]
    shown = errors[:_SHOWN_ERRORS] or done.stderr.strip().splitlines()[:_SHOWN_ERRORS]
    raise CompileError(
        f"{source.name}: the host compiler rejected the source\n"
        + "".join(f"  {line.strip()}\n" for line in shown)
        + f"  in {source}, compiled by {command[0]} ({len(errors)} errors in all)\n"
        "  correct the source; the command was: " + shlex.join(command)
    )
