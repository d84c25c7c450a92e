"""Writes the five files of a new kernel family: a small working kernel to start from."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from dsv4 import registry
from dsv4.errors import Refusal, SpecError
from lab.page import five_files

_TEMPLATES = Path(__file__).with_name("family_template")
_TEMPLATE_OF = {
    "cuda": "source",
    "oracle": "oracle",
    "dsv4": "declaration",
    "lab": "cases",
    "tests": "test",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def checkout() -> Path:
    """The root of the source tree that runs. Errors: Refusal when it is an installed package."""
    root = Path(__file__).resolve().parents[1]
    if all((root / folder).is_dir() for folder in _TEMPLATE_OF):
        return root
    raise Refusal(
        f"a new family needs a checkout of the repository; dsv4-lab runs from {root}\n"
        "  clone the repository and run: python -m lab.cli.main new NAME"
    )


def render(name: str) -> dict[str, str]:
    """Path, from the root, and content of the five files.

    Errors: SpecError for a name that cannot be a file stem, a Python name and a C symbol at once.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise SpecError(
            f"{name!r} cannot name a family: one word serves as file, Python and C name\n"
            "  use lower-case letters, digits and single underscores, such as rms_norm"
        )
    if name in registry.kernels():
        family = registry.spec(name).family
        raise SpecError(f"{name!r} is a kernel of family {family} already\n  choose another name")
    files = {}
    for path in five_files(name).values():
        template = _TEMPLATES / f"{_TEMPLATE_OF[path.partition('/')[0]]}.txt"
        files[path] = Template(template.read_text(encoding="utf-8")).substitute(name=name)
    return files


def write(files: Mapping[str, str], root: Path) -> None:
    """Write all of the files, or none.

    Errors: SpecError when one exists already, OSError when one cannot be written.
    """
    if existing := [path for path in files if (root / path).exists()]:
        raise SpecError(
            f"{', '.join(existing)} exists already; nothing was written\n"
            "  choose another name, or move the file away"
        )
    written: list[Path] = []
    try:
        for path, content in files.items():
            written.append(root / path)
            written[-1].write_text(content, encoding="utf-8")
    except BaseException:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise
