"""What a revision's sources compile to beside today's: figures and machine code, no GPU needed.

Both sides are built without line information: the assembler's schedule depends on line numbers, so
with it even a comment can move an instruction.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import CompileError
from dsv4.runtime.nvrtc import Cubin, compile_cubin
from dsv4.runtime.sources import cuda_root, forget_sources
from dsv4.spec import KernelSpec
from lab import revisions
from lab.tools import cubin

SAME, CHANGED, NEW, MISSING = "SAME", "FAIL", "NEW", "MISSING"
_MOST_LINES = 60
Build = tuple[KernelSpec, Mapping[str, int], str]


@dataclass(frozen=True, slots=True)
class Codegen:
    """Figures of one kernel's build."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class CodeChange:
    """One build on both sides.

    verdict: SAME, FAIL (other instructions, constants or attributes), NEW, MISSING. sections: what
    differs. listing: a diff of the machine code where a disassembler is there.
    """

    kernel: str
    arch: str
    constants: Mapping[str, int]
    verdict: str
    before: Codegen | None
    after: Codegen | None
    sections: tuple[str, ...] = ()
    listing: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of `compile --diff`'s builds."""
        return asdict(self)


def compare_builds(work: Sequence[Build], revision: str) -> Iterator[CodeChange]:
    """Every build as the revision has it and as it is here. Errors: SpecError, DeviceError."""
    with revisions.sources_at(revision, asked=f"--diff {revision}") as sources:
        for spec, constants, arch in work:
            with sources_from(sources):
                before = _built(spec, constants, arch)
            yield _change(spec, constants, arch, before, _built(spec, constants, arch))


@contextlib.contextmanager
def sources_from(folder: Path) -> Iterator[None]:
    """Use the kernel sources of another folder inside the `with`."""
    kept = os.environ.get("DSV4_CUDA_ROOT")
    os.environ["DSV4_CUDA_ROOT"] = str(folder)
    forget_sources()
    try:
        yield
    finally:
        if kept is None:
            del os.environ["DSV4_CUDA_ROOT"]
        else:
            os.environ["DSV4_CUDA_ROOT"] = kept
        forget_sources()


def code_bytes(built: Cubin, symbol: str) -> int:
    """The size of a kernel's machine code."""
    return cubin.code_bytes(built.path.read_bytes(), symbol)


def _built(spec: KernelSpec, constants: Mapping[str, int], arch: str) -> Cubin | str:
    """The cubin, or why there is none."""
    source = cuda_root() / f"{spec.family}.cu"
    if not source.is_file():
        return f"there is no {source.name}"
    try:
        return compile_cubin(source, defines=constants, arch=arch, line_info=False)
    except CompileError as error:
        return str(error).splitlines()[0]


def _change(
    spec: KernelSpec,
    constants: Mapping[str, int],
    arch: str,
    before: Cubin | str,
    after: Cubin | str,
) -> CodeChange:
    old, new = (_figures(b, spec.symbol) for b in (before, after))
    problem = after if isinstance(after, str) else before if isinstance(before, str) else ""
    sections: tuple[str, ...] = ()
    listing = ""
    if isinstance(before, Cubin) and isinstance(after, Cubin):
        binaries = before.path.read_bytes(), after.path.read_bytes()
        sections = tuple(cubin.differing(*binaries, spec.symbol))
        if f".text.{spec.symbol}" in sections:
            listing = sass_diff(before.path, after.path, spec.symbol)
    verdict = CHANGED if sections else SAME
    if old is None or new is None:
        verdict = NEW if old is None and new is not None else MISSING
    return CodeChange(spec.name, arch, constants, verdict, old, new, sections, listing, problem)


def _figures(built: Cubin | str, symbol: str) -> Codegen | None:
    if isinstance(built, str):
        return None
    used = built.resources().get(symbol)
    if used is None:
        return None
    return Codegen(used.registers, used.shared_bytes, used.spill_bytes, code_bytes(built, symbol))


def sass_diff(before: Path, after: Path, symbol: str) -> str:
    """A unified diff of a kernel's machine code; "" without a disassembler."""
    tool = shutil.which("cuobjdump")
    if tool is None:
        return ""
    command = [tool, "--dump-sass", "--function", symbol]
    old, new = (
        subprocess.run(
            [*command, str(path)], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        for path in (before, after)
    )
    lines = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=1))
    more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *more])
