"""What a record was made on: hardware, driver, compilers, libraries, switches and commit.

Only looks, never sets anything. CuPy is asked when the backend is cuda or CuPy was imported
anyway, so that a run on the CPU never pays for it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dsv4 import __version__
from dsv4.errors import Dsv4Error
from lab.record.nvidia_smi import gpu_settings_and_state

_PACKAGES = (
    "click",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "hypothesis",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime",
    "nvmath-python",
    "pytest",
    "pytest-benchmark",
    "safetensors",
    "ziglang",
)
_VARIABLES = ("CUPY_", "CUDA_", "NVIDIA_", "DSV4_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SOURCES = ("cuda", "dsv4", "lab", "oracle")
_ROOT = Path(__file__).resolve().parents[2]


def capture(device: Any = None, *, ask_cuda: bool = False) -> dict[str, Any]:
    """Everything that could explain a different result, ready for JSON.

    device: the `Device` in use. ask_cuda: import CuPy even when nothing used it yet.
    `git` and `state` (clocks, temperature) change between runs; the rest is stored once.
    """
    backend = getattr(device, "backend", None)
    on_cuda = ask_cuda or backend == "cuda"
    index = int(getattr(device, "index", 0))
    cuda = _cuda(index) if on_cuda or "cupy" in sys.modules else None
    settings, state = _smi_row(cuda, index) if on_cuda else (None, None)
    return {
        "dsv4_lab": __version__,
        "backend": backend,
        "device": getattr(device, "name", None),
        "arch": getattr(device, "arch", None),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": platform.platform(),
        "machine": platform.machine(),
        "container": _container(),
        "cpu": {"model": _cpu_model(), "threads": os.cpu_count()},
        "numpy": _numpy(),
        "packages": _packages(),
        "compiler": _compiler(),
        "cuda": cuda,
        "gpu_settings": settings,
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
        "git": _git(_ROOT),
        "state": state,
    }


def summary_line(env: dict[str, Any]) -> str:
    """One line for people: `H200 sm_90a  driver 580.159  nvrtc 12.9  commit 4f1c2ab+dirty`."""
    git = env.get("git") or {}
    cuda = env.get("cuda") or {}
    parts = [str(env["device"] or env["cpu"]["model"] or env["machine"])]
    if env.get("backend") == "cuda":
        parts[0] += f" {env['arch']}"
        parts += [f"driver {(env['gpu_settings'] or {}).get('driver', cuda.get('driver'))}"]
        parts += [f"nvrtc {cuda.get('nvrtc')}", f"cupy {cuda.get('cupy')}"]
        if clock := (env.get("state") or {}).get("sm_mhz"):
            parts += [f"SM {clock:g} MHz"]
    else:
        parts += [str((env["compiler"] or {}).get("version") or "no compiler")]
    parts += [f"python {env['python']}", f"numpy {env['numpy']['version']}"]
    if git.get("commit"):
        parts += [f"commit {git['commit'][:7]}" + ("+dirty" if git["dirty"] else "")]
    return "  ".join(parts)


def _cuda(index: int) -> dict[str, Any]:
    """CuPy, its libraries and the GPU; each None, with the reason, where it is missing."""
    found: dict[str, Any] = {
        "cupy": None,
        "driver": None,
        "runtime": None,
        "nvrtc": None,
        "nvrtc_path": None,
        "gpu": None,
    }
    try:
        import cupy
        from cupy.cuda import nvrtc, runtime
    except Exception as error:  # a broken installation fails in many ways
        return {**found, "problem": f"CuPy cannot be imported ({error})"}
    found["cupy"] = cupy.__version__
    try:
        found["nvrtc"] = "{}.{}".format(*nvrtc.getVersion())
        found["nvrtc_path"] = _loaded_library("libnvrtc.so")
        found["runtime"] = _dotted(runtime.runtimeGetVersion())
        found["driver"] = _dotted(runtime.driverGetVersion())
        found["gpu"] = _gpu(runtime, index)
    except Exception as error:  # CuPy raises its own class per library
        found["problem"] = str(error)
    return found


def _smi_row(cuda: dict[str, Any] | None, index: int) -> tuple[Any, Any]:
    """Settings and state of this GPU: CUDA may see other cards, in another order, than smi."""
    settings, state = gpu_settings_and_state()
    if not settings or not state:
        return None, None
    uuid = ((cuda or {}).get("gpu") or {}).get("uuid")
    known = [str(row.get("uuid", "")).removeprefix("GPU-").replace("-", "") for row in settings]
    row = known.index(uuid) if uuid in known else index
    return (settings[row], state[row]) if row < len(settings) else (None, None)


def _gpu(runtime: Any, index: int) -> dict[str, Any] | None:
    if index >= runtime.getDeviceCount():
        return None
    p = runtime.getDeviceProperties(index)
    return {
        "name": p["name"].decode(),
        "uuid": bytes(p["uuid"]).hex() if "uuid" in p else None,
        "compute_capability": f"{p['major']}.{p['minor']}",
        "sm_count": p["multiProcessorCount"],
        "l2_bytes": p["l2CacheSize"],
        "memory_bytes": p["totalGlobalMem"],
        "shared_bytes_per_block": p["sharedMemPerBlockOptin"],
        "ecc": bool(p["ECCEnabled"]),
    }


def _dotted(version: int) -> str | None:
    """12090 as "12.9"; None for 0, which means that there is none."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def _loaded_library(stem: str) -> str | None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if stem in line}
    return min(paths, default=None)


def _compiler() -> dict[str, Any]:
    """The host backend's compiler, or why there is none."""
    from dsv4.runtime.host_compiler import find_compiler

    try:
        compiler = find_compiler()
    except Dsv4Error as error:
        return {"command": None, "version": None, "problem": str(error).splitlines()[0]}
    version = compiler.identity.splitlines()[0]
    return {"command": " ".join(Path(p).name for p in compiler.compile), "version": version}


def _numpy() -> dict[str, Any]:
    blas: dict[str, Any] = {}
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    blas = {k: found.get(k) for k in ("name", "version")}
    return {"version": np.__version__, "blas": blas}


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or None)


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return os.environ.get("container")


def _git(root: Path) -> dict[str, Any] | None:
    """Commit, and a digest of every change since in the source folders; None outside a checkout."""
    try:
        commit = _run_git(root, "rev-parse", "HEAD").decode().strip()
        changes = _run_git(root, "diff", "HEAD", "--no-ext-diff", "--", *_SOURCES)
        new = _run_git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_SOURCES)
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256(changes)
    for name in sorted(filter(None, new.split(b"\0"))):
        path = root / os.fsdecode(name)
        digest.update(name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    dirty = bool(changes or new)
    return {"commit": commit, "dirty": dirty, "diff_digest": digest.hexdigest() if dirty else None}


def _run_git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=5).stdout
