"""Finds the kernel sources, the files one of them includes, and their digest.

Both backends use it: a cached binary must never outlive an edit to any file it was made from.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from dsv4.errors import CompileError

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(include\w*|import)\b[ \t]*(.*)$", re.MULTILINE
)
_SETTLED_NS = 2_000_000_000
_QUOTED = re.compile(r'"([^"]+)"\s*$')


@cache
def cuda_root() -> Path:
    """The folder that holds the kernel sources: `cuda/` of a checkout, or the wheel's copy.

    `DSV4_CUDA_ROOT` names another folder, such as the sources of another revision.
    """
    if named := os.environ.get("DSV4_CUDA_ROOT"):
        return Path(named).resolve()
    package = Path(__file__).resolve().parent.parent
    for root in (package.parent / "cuda", package / "cuda"):
        if (root / "host" / "cuda_host.h").is_file():
            return root
    raise CompileError(
        "kernel sources: the folder cuda/ was not found\n"
        f"  looked beside and inside {package}\n"
        "  reinstall dsv4-lab, or run from a complete checkout"
    )


def include_closure(path: Path) -> tuple[Path, ...]:
    """The file and every file it includes, directly or not, each once, sorted after the first.

    Includes behind `#if` count too: a digest over too many files is merely a rebuild too often.

    Errors: CompileError for a missing file, for `<...>` and for a computed include, because their
    content could not be part of a digest.
    """
    first = path.resolve()
    found: set[Path] = set()
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        included = _includes(file, _read(file).sha256)
        waiting.extend(_resolve(name, file, line) for line, name in included)
    return (first, *sorted(found - {first}))


def digest(paths: Iterable[Path], extra: str) -> str:
    """The sha256, in hexadecimal, of the files' names and contents and of `extra`."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.name}\0".encode())
        total.update(_read(path).sha256)
    total.update(extra.encode())
    return total.hexdigest()


_steady = 0


@contextmanager
def steady_sources() -> Iterator[None]:
    """Inside the `with` sources are taken not to change: kernels built already are not looked at.

    Asking for the times of some twenty files costs more than the launch of a small kernel.
    """
    global _steady
    _steady += 1
    try:
        yield
    finally:
        _steady -= 1


def are_steady() -> bool:
    """Whether a `steady_sources` is open."""
    return _steady > 0


def forget_sources() -> None:
    """Read every file again at the next call."""
    _files.clear()
    _includes.cache_clear()
    cuda_root.cache_clear()


@dataclass(frozen=True, slots=True)
class _File:
    """What a file held when its time and size were these."""

    modified_ns: int
    size_bytes: int
    sha256: bytes


_files: dict[Path, _File] = {}


def _read(path: Path) -> _File:
    """The file's digest, remembered while its time and size stay the same.

    A launch asks for about thirty files. One changed less than two seconds ago is read each time,
    because two edits inside one tick of the clock would look alike.
    """
    try:
        state = path.stat()
        known = _files.get(path)
        if known is not None and known.modified_ns == state.st_mtime_ns:
            if known.size_bytes == state.st_size:
                return known
        content = path.read_bytes()
    except OSError as error:
        raise CompileError(
            f"{path}: the source cannot be read\n  {error}\n  pass the path of an existing .cu file"
        ) from error
    file = _File(state.st_mtime_ns, state.st_size, hashlib.sha256(content).digest())
    if time.time_ns() - state.st_mtime_ns > _SETTLED_NS:
        _files[path] = file
    else:
        _files.pop(path, None)
    return file


@lru_cache(maxsize=256)
def _includes(file: Path, sha256: bytes) -> tuple[tuple[int, str], ...]:
    """Line and name of every include of a file with that content."""
    bare = _COMMENT.sub(_keep_strings, file.read_text(encoding="utf-8", errors="replace"))
    included = []
    for match in _DIRECTIVE.finditer(bare):
        line = bare.count("\n", 0, match.start()) + 1
        quoted = _QUOTED.match(match[2])
        if match[1] != "include" or quoted is None:
            raise CompileError(
                f"{file.name}: the include cannot be followed\n"
                f"  found `{match[0].strip()}`\n"
                f"  at {file}:{line}\n"
                '  write #include "common/NAME.cuh"; use no toolkit header and no computed name'
            )
        included.append((line, quoted[1]))
    return tuple(included)


def _resolve(name: str, includer: Path, line: int) -> Path:
    for folder in (includer.parent, cuda_root()):
        candidate = folder / name
        if candidate.is_file():
            return candidate.resolve()
    raise CompileError(
        f'{includer.name}: the included file "{name}" does not exist\n'
        f"  looked in {includer.parent} and {cuda_root()}\n"
        f"  included at {includer}:{line}\n"
        "  correct the name, or create the file"
    )


def _keep_strings(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith('"'):
        return text
    return " " + "\n" * text.count("\n")
