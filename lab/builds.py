"""Builds a kernel for GPUs that need not be here: every architecture, every build its cases use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import CompileError, DeviceError
from dsv4.runtime.launch import constants_of
from dsv4.runtime.nvrtc import ARCHITECTURES, Cubin, compile_cubin, compile_ptx
from dsv4.runtime.sources import cuda_root
from dsv4.spec import KernelSpec
from lab.cases import Case, cases, scalars_of

# NVRTC compiles in parallel, at some 300 MB a compile.
_WORKERS = min(os.cpu_count() or 2, 16)


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel compiled with one set of constants for one architecture.

    problem: why it is no good, or "". skipped: why it was not tried, or "".
    """

    kernel: str
    arch: str
    constants: Mapping[str, int]
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    warnings: tuple[str, ...] = ()
    cubin_digest: str = ""
    cached: bool = False
    problem: str = ""
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of compile's `builds` list."""
        return asdict(self)


def source_of(spec: KernelSpec) -> Path:
    """The `.cu` that holds the kernel."""
    return cuda_root() / f"{spec.family}.cu"


def constants_for(spec: KernelSpec, case: Case) -> dict[str, int]:
    """The build constants of a case."""
    return dict(constants_of(spec, {**case.axes, **scalars_of(spec, case)}))


def constant_sets(spec: KernelSpec) -> list[dict[str, int]]:
    """Every distinct set of build constants that the kernel's cases use, in their order."""
    found = [constants_for(spec, case) for case in cases(spec.name)]
    return [c for i, c in enumerate(found) if c not in found[:i]]


def plan(
    specs: Sequence[KernelSpec], arches: Sequence[str] = ()
) -> list[tuple[KernelSpec, dict[str, int], str]]:
    """What to build: kernel, constants and architecture; the four supported ones by default."""
    return [
        (spec, constants, arch)
        for spec in specs
        for constants in constant_sets(spec)
        for arch in arches or ARCHITECTURES
    ]


def build_all(
    work: Sequence[tuple[KernelSpec, Mapping[str, int], str]],
) -> Iterator[Build]:
    """Builds in the order of the plan, several at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            yield from pool.map(lambda item: build(*item), work)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def build(spec: KernelSpec, constants: Mapping[str, int], arch: str) -> Build:
    """One build; a source that does not compile is its `problem`.

    Errors: DeviceError when NVRTC is missing.
    """
    number = int("".join(c for c in arch if c.isdigit()))
    if number < spec.min_arch:
        return Build(spec.name, arch, constants, skipped=f"needs sm_{spec.min_arch}")
    try:
        cubin = compile_cubin(source_of(spec), defines=constants, arch=arch)
    except CompileError as error:
        return Build(spec.name, arch, constants, problem=str(error))
    return _judged(spec, constants, cubin)


def _judged(spec: KernelSpec, constants: Mapping[str, int], cubin: Cubin) -> Build:
    used = cubin.resources().get(spec.symbol)
    if used is None:
        problem = f"{spec.family}.cu defines no kernel {spec.symbol}"
        return Build(spec.name, cubin.arch, constants, problem=problem)
    problem = ""
    if used.spill_bytes > spec.spills:
        allowed = f"{spec.spills} declared" if spec.spills else "none declared"
        problem = f"{used.spill_bytes} bytes of registers spilled, {allowed}"
    return Build(
        kernel=spec.name,
        arch=cubin.arch,
        constants=constants,
        registers=used.registers,
        shared_bytes=used.shared_bytes,
        stack_bytes=used.stack_bytes,
        spill_bytes=used.spill_bytes,
        warnings=tuple(cubin.warnings()),
        cubin_digest=cubin.digest,
        cached=cubin.cached,
        problem=problem,
    )


def ptx(spec: KernelSpec, constants: Mapping[str, int], arch: str) -> str:
    """The PTX of the kernel's source. Errors: CompileError, DeviceError."""
    return compile_ptx(source_of(spec), defines=constants, arch=arch)


def sass(spec: KernelSpec, constants: Mapping[str, int], arch: str) -> str:
    """The machine code of the kernel, disassembled.

    Errors: CompileError; DeviceError when NVRTC or the disassembler is missing.
    """
    tool = _disassembler()
    cubin = compile_cubin(source_of(spec), defines=constants, arch=arch)
    command = [str(tool), "--dump-sass", "--function", spec.symbol, str(cubin.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(
            f"{spec.name}: the disassembler {tool.name} failed for {arch}\n"
            f"  {done.stderr.strip()[:300]}\n  use the one of CUDA 12.9 or newer"
        )
    return done.stdout


def _disassembler() -> Path:
    """`cuobjdump`, which needs `nvdisasm` beside it."""
    if found := shutil.which("cuobjdump"):
        return Path(found)
    raise DeviceError(
        "showing SASS needs cuobjdump and nvdisasm, and they are not on the path\n"
        "  they come with the CUDA toolkit; add its bin folder to PATH, or use --ptx"
    )
