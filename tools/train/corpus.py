"""The corpus: Python source files of the running interpreter's standard library, as bytes.

Rules, all by name, so that two installations of one release give the same files: every `.py` file
below the standard library's folder, in the order of its path, but nothing of third parties, nothing
generated at build time, and none of `LEFT_OUT`. A module is the first part of the path; a module
whose hash says so is held out as a whole. The library's own tests are learned from too, but those
of a held-out module are left out: they say what it holds.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.errors import Refusal

LEFT_OUT: Final[Mapping[str, str]] = {
    "__phello__": "a test of frozen modules",
    "__pycache__": "compiled files",
    "distutils": "gone after 3.11",
    "dist-packages": "third parties",
    "encodings": "tables of characters",
    "ensurepip": "carries wheels",
    "pydoc_data": "generated text",
    "site-packages": "third parties",
    "turtledemo": "programs",
}
_TEST_FOLDERS: Final = {"test", "tests", "idle_test"}
_TEST_NAME: Final = re.compile(r"^_?test_(?=.)")
_GENERATED: Final = ("_sysconfigdata", "_sysconfig_vars")
RELEASE: Final = "RELEASE"
HELD_OUT_SHARE: Final = 16
"""One module in so many is held out, by the first bytes of its name's SHA-256."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path below the library's folder, and its bytes."""

    name: str
    content: bytes

    @property
    def module(self) -> str:
        """The module or package that the file belongs to; of a test, the one that it tests."""
        first, *rest = self.name.split("/")
        if first == "test" and rest:
            return _TEST_NAME.sub("", rest[0].removesuffix(".py"))
        return first.removesuffix(".py")

    @property
    def is_test(self) -> bool:
        """Whether it is one of the library's tests, or serves them."""
        return not _TEST_FOLDERS.isdisjoint(self.name.split("/")[:-1])


@dataclass(frozen=True, slots=True)
class Corpus:
    """The files of one release, apart: for training, and held out."""

    release: str
    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]

    def record(self) -> dict[str, Any]:
        """What a run writes down of its corpus, and what another run must find again."""
        return {
            "release": self.release,
            "licence": "PSF-2.0",
            "train": _part(self.train),
            "held_out": {
                **_part(self.held_out),
                "modules": sorted({f.module for f in self.held_out}),
            },
            "files": {f.name: _digest([f])[:16] for f in (*self.train, *self.held_out)},
        }


def read_corpus(folder: Path | None = None) -> Corpus:
    """The corpus of a library folder; of the running interpreter if none is given.

    A folder that `copy_corpus` wrote says of which release it is; others are of the running one.
    Errors: Refusal for a folder without such files.
    """
    root = library_folder(folder)
    files = [
        SourceFile(path.relative_to(root).as_posix(), path.read_bytes())
        for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix())
        if belongs(path.relative_to(root).parts)
    ]
    held_out = tuple(f for f in files if is_held_out(f.module) and not f.is_test)
    kept = {f.module for f in held_out}
    train = tuple(f for f in files if kept.isdisjoint((f.module, f"_{f.module}")))
    if not train or not held_out:
        raise Refusal(
            f"a corpus was asked for; {len(train)} files for training, {len(held_out)} held out\n"
            f"  in {root}\n  give the folder of a whole standard library"
        )
    named = root / RELEASE
    release = f"CPython {platform.python_version()}"
    if named.is_file():
        release = named.read_text(encoding="utf-8").strip()
    return Corpus(release, train, held_out)


def library_folder(folder: Path | None) -> Path:
    """The folder itself; the running interpreter's library if none is given."""
    return Path(folder or sysconfig.get_path("stdlib"))


def copy_corpus(corpus: Corpus, folder: Path) -> None:
    """Write the corpus into a new folder, to be read on a machine with another interpreter.

    Errors: Refusal when something is there.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Refusal(
            f"a copy of the corpus was asked for; something is there\n  {folder}\n"
            "  give a new folder"
        )
    for file in (*corpus.train, *corpus.held_out):
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.name).write_bytes(file.content)
    (folder / RELEASE).write_text(corpus.release + "\n", encoding="utf-8")


def belongs(parts: tuple[str, ...]) -> bool:
    """Whether a path below the library's folder is part of the corpus."""
    if parts[0].removesuffix(".py") in LEFT_OUT or parts[0].startswith((*_GENERATED, "config-")):
        return False
    return not any(part in LEFT_OUT for part in parts[1:-1])


def is_held_out(module: str) -> bool:
    """Whether a module is kept for evaluation: the same for every release."""
    digest = hashlib.sha256(module.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def check_recorded(corpus: Corpus, recorded: Mapping[str, Any]) -> None:
    """Nothing, if the corpus is the recorded one. Errors: Refusal that says what differs."""
    now = corpus.record()
    if all(now[part] == recorded.get(part) for part in ("train", "held_out", "files")):
        return
    old, new = recorded.get("files", {}), now["files"]
    gone, added = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    changed = sorted(name for name in set(old) & set(new) if old[name] != new[name])
    found = "; ".join(
        f"{len(names)} {word} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for word, names in (("missing", gone), ("added", added), ("changed", changed))
        if names
    )
    raise Refusal(
        f"the corpus of {recorded.get('release')} was recorded; this is {corpus.release}\n"
        f"  {found or 'the same files are divided in another way'}\n"
        "  run the recorded release, or begin in a new folder"
    )


def read_record(file: Path) -> dict[str, Any]:
    """A recorded corpus. Errors: Refusal when the file holds none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(
            f"a recorded corpus was asked for: {error}\n  in {file}\n  give a file of `corpus`"
        ) from None
    if not isinstance(content, dict) or "files" not in content:
        raise Refusal(f"no recorded corpus\n  in {file}\n  give a file that `corpus` wrote")
    return content


def _part(files: Iterable[SourceFile]) -> dict[str, Any]:
    listed = list(files)
    return {
        "files": len(listed),
        "bytes": sum(len(f.content) for f in listed),
        "sha256": _digest(listed),
    }


def _digest(files: Iterable[SourceFile]) -> str:
    """Of names and contents, each behind its length, so that no two lists share one."""
    found = hashlib.sha256()
    for file in files:
        for piece in (file.name.encode(), file.content):
            found.update(len(piece).to_bytes(8, "little"))
            found.update(piece)
    return found.hexdigest()
