"""The command line in a folder of its own, on kernel sources with one planted fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from dsv4.runtime.sources import include_closure

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment of a command that finds this checkout from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **more}


def lab(
    folder: Path, *arguments: str, stdin: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in that folder."""
    return subprocess.run(
        [sys.executable, "-m", "lab.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        env=environment(**more),
    )


def planted(folder: Path, file: str, old: str, new: str, name: str = "cuda") -> str:
    """The kernel sources with one edit; their folder, for DSV4_CUDA_ROOT.

    Headers are copies; a kernel that no edit reaches is a link to the real one, so that its build
    is taken from the cache. Edit through this function alone: it makes a copy of what it edits.
    """
    copy = folder / name
    if not copy.exists():
        shutil.copytree(ROOT / "cuda", copy, ignore=shutil.ignore_patterns("*.cu"))
        for path in (ROOT / "cuda").glob("*.cu"):
            (copy / path.name).symlink_to(path)
    source = copy / file
    text = source.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {file}"
    source.unlink()
    source.write_text(text.replace(old, new, 1))
    # A link includes the real headers: what includes the edited one becomes a copy as well.
    for kernel in copy.glob("*.cu"):
        if kernel.is_symlink() and ROOT / "cuda" / file in include_closure(kernel):
            text = kernel.read_text()
            kernel.unlink()
            kernel.write_text(text)
    return str(copy)
