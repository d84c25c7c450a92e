"""Looks for everything the project can use, and knows the line that installs what is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from dsv4.errors import CompileError, Dsv4Error
from dsv4.runtime.device import cuda_problem
from dsv4.runtime.host_compiler import find_compiler
from dsv4.runtime.nvrtc import nvrtc_version
from dsv4.runtime.sources import cuda_root

# Module, what to install for it, what it is for.
_OPTIONAL = (
    ("pytest", "pytest pytest-benchmark hypothesis", "the tests"),
    ("matplotlib", "matplotlib", "plots in reports"),
    ("execnet", "execnet", "kernel-diff --workers"),
    ("ray", "ray", "kernel-diff --ray, over several hosts"),
    ("IPython", "ipython", "a better prompt"),
    ("nvmath", "nvmath-python", "cuBLASLt features"),
    ("ziglang", "ziglang", "a C++ compiler as a wheel"),
    ("tokenizers", "tokenizers", "prompts as text"),
)
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for. state: "ok", "missing" (and wanted), or "optional" (and absent)."""

    name: str
    state: str
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """One element of doctor's `findings` list."""
        return asdict(self)


def examine(store: Path) -> list[Finding]:
    """Every finding, what the main job needs first."""
    driver = shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()
    return [
        _python(),
        _sources(),
        *(_package(name) for name in ("numpy", "click", "safetensors")),
        _compiler(),
        _cupy(driver),
        _nvrtc(driver),
        _headers(driver),
        _gpu(driver),
        _store(store),
        *(_optional(*package) for package in _OPTIONAL),
    ]


def _python() -> Finding:
    version = platform.python_version()
    if tuple(map(int, platform.python_version_tuple()[:2])) >= _OLDEST_PYTHON:
        return Finding("python", "ok", version)
    return Finding("python", "missing", version, "install Python 3.11 or newer")


def _sources() -> Finding:
    try:
        count = len(list(cuda_root().glob("*.cu")))
    except CompileError as error:
        return Finding("sources", "missing", _first_line(error), "reinstall dsv4-lab")
    return Finding("sources", "ok", f"{count} .cu files")


def _package(name: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, "missing", "not installed", f"pip install {name}")
    return Finding(name, "ok", version)


def _compiler() -> Finding:
    try:
        compiler = find_compiler()
    except CompileError as error:
        fix = "install g++ or clang++, or: pip install ziglang"
        return Finding("compiler", "missing", _first_line(error), fix)
    return Finding("compiler", "ok", compiler.identity.splitlines()[0])


def _cupy(driver: bool) -> Finding:
    if _has("cupy"):
        return Finding("cupy", "ok", _version("cupy") or "installed")
    return _wanted("cupy", "not installed", driver)


def _nvrtc(driver: bool) -> Finding:
    try:
        return Finding("nvrtc", "ok", nvrtc_version())
    except Dsv4Error as error:
        return _wanted("nvrtc", _first_line(error), driver)


def _headers(driver: bool) -> Finding:
    folder = _header_folder()
    if folder is not None:
        return Finding("cuda headers", "ok", str(folder))
    return _wanted("cuda headers", "cuda_bf16.h not found (no kernel needs it yet)", driver)


def _gpu(driver: bool) -> Finding:
    problem = cuda_problem()
    if problem is None:
        return Finding("gpu", "ok", _gpu_name())
    if driver:
        fix = "check that nvidia-smi works and that the driver is new enough for CuPy"
        return Finding("gpu", "missing", _shortened(problem), fix)
    return Finding("gpu", "optional", "no NVIDIA driver; the host backend needs none")


def _store(path: Path) -> Finding:
    """Whether the nearest existing folder of the store takes a file; nothing is left there."""
    folder = path.resolve().parent
    while not folder.exists():
        folder = folder.parent
    fix = "name a writable place with --store PATH or DSV4_STORE"
    try:
        if path.exists() and not os.access(path, os.W_OK):
            return Finding("store", "missing", f"{path} cannot be written", fix)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("store", "missing", f"{path}: {error.strerror}", fix)
    return Finding("store", "ok", f"{path}{'' if path.exists() else ' (made when needed)'}")


def _optional(module: str, packages: str, purpose: str) -> Finding:
    if _has(module):
        return Finding(module, "ok", purpose)
    return Finding(module, "optional", purpose, f"pip install {packages}")


def _wanted(name: str, detail: str, driver: bool) -> Finding:
    """Missing where a driver is, optional elsewhere, with the packages for this machine."""
    if driver:
        fix = "pip install 'cupy-cuda12x[ctk]', or cupy-cuda13x for a CUDA 13 driver"
        return Finding(name, "missing", _shortened(detail), fix)
    fix = "pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
    return Finding(name, "optional", _shortened(detail), fix)


def _header_folder() -> Path | None:
    roots: list[Path] = []
    with contextlib.suppress(ImportError):
        spec = importlib.util.find_spec("nvidia")
        for place in (spec.submodule_search_locations or []) if spec else []:
            roots += sorted(Path(place).glob("*/include"))
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            roots.append(Path(os.environ[variable]) / "include")
    roots.append(Path("/usr/local/cuda/include"))
    return next((root for root in roots if (root / "cuda_bf16.h").is_file()), None)


def _gpu_name() -> str:
    import cupy

    name: str = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return name


def _has(module: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None
    return False


def _version(module: str) -> str | None:
    from importlib import metadata

    names = {"cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy")}.get(module, (module,))
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _shortened(text: str, limit: int = 72) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
