"""The kernel sources of another revision, and the workbench run on them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from dsv4.errors import SpecError

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def sources_at(revision: str, *, asked: str) -> Iterator[Path]:
    """The `cuda/` folder of a revision, laid out for the time of the `with`.

    asked: what named the revision, for the message. Errors: SpecError when git does not know it.
    """
    with tempfile.TemporaryDirectory(prefix="dsv4-lab-") as folder:
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "cuda"]
        archive = subprocess.run(command, capture_output=True, check=False)
        if archive.returncode:
            raise SpecError(
                f"{asked} cannot be built: {archive.stderr.decode(errors='replace').strip()}\n"
                "  give a commit or tag of this checkout that has a cuda/ folder"
            )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder) / "cuda"


def run_with(sources: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`dsv4-lab` with these arguments, in a process of its own, on the kernels of that folder."""
    return subprocess.run(
        [sys.executable, "-m", "lab.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "DSV4_CUDA_ROOT": str(sources)},
        check=False,
    )


def is_revision(name: str) -> bool:
    """Whether git knows a commit by that name."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def short_name(revision: str) -> str:
    """The commit's short hash and the first line of its message."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h %s", revision, "--"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
