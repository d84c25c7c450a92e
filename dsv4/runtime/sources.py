"""Finds the kernel sources, the files one of them includes, and their digest.

Both backends use it: a cached binary must never outlive an edit to any file it was made from.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dsv4.errors import CompileError

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(include\w*|import)\b[ \t]*(.*)$", re.MULTILINE
)
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
        waiting.extend(_included_by(file))
    return (first, *sorted(found - {first}))


def digest(paths: Iterable[Path], extra: str) -> str:
    """The sha256, in hexadecimal, of the files' names and contents and of `extra`."""
    total = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        total.update(f"{path.name}\0{len(content)}\0".encode())
        total.update(content)
    total.update(extra.encode())
    return total.hexdigest()


def _included_by(file: Path) -> list[Path]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise CompileError(
            f"{file}: the source cannot be read\n  {error}\n  pass the path of an existing .cu file"
        ) from error
    bare = _COMMENT.sub(_keep_strings, text)
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
        included.append(_resolve(quoted[1], file, line))
    return included


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
