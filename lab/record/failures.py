"""What went wrong with a store, in words with a next step."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dsv4.errors import StoreError

# Less than this free, and a failed write is put down to the disk.
_NEARLY_FULL_BYTES = 1 << 20


def explain(error: Exception, path: Path, doing: str) -> StoreError:
    """The StoreError for a failure while `doing` something with the store at `path`."""
    name = getattr(error, "sqlite_errorname", "") or ""
    text = str(error)
    if _is_full(error, name, path):
        return StoreError(
            f"cannot {doing} in {path}: the disk is full ({text})\n"
            "  records written before are safe; free some space, run dsv4-lab records prune,"
            " or choose another place with --store PATH"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            f"cannot {doing} in {path}: another process holds the store ({text})\n"
            "  records written before are safe; wait for it to end, or choose another place"
            " with --store PATH"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")):
        return damaged(path, text, doing)
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")) or isinstance(
        error, OSError
    ):
        return StoreError(
            f"cannot {doing} in {path}: the file or its directory cannot be written ({text})\n"
            "  choose a writable place with --store PATH or DSV4_STORE, or use --no-record"
        )
    return StoreError(
        f"cannot {doing} in {path}: {text}\n"
        "  records written before are safe; check the disk, or choose another place with"
        " --store PATH"
    )


def damaged(path: Path, found: str, doing: str = "use the records") -> StoreError:
    """The StoreError for a file that is no store, or no longer one."""
    return StoreError(
        f"cannot {doing} in {path}: the file is damaged or is no record store ({found})\n"
        f"  nothing more was written to it; move it away (mv {path.name} {path.name}.damaged)"
        f" and run again; what is readable comes back with: sqlite3 {path.name}.damaged .recover"
    )


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's and the system's errors inside the `with` into StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explain(error, path, doing) from error


def _is_full(error: Exception, name: str, path: Path) -> bool:
    if name.startswith("SQLITE_FULL") or getattr(error, "errno", None) == errno.ENOSPC:
        return True
    if not name.startswith("SQLITE_IOERR"):
        return False
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path.parent).free < _NEARLY_FULL_BYTES
    return False
