"""Files of golden digests: one line of JSON each, sorted, replaced whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dsv4.errors import SpecError
from lab.record.rows import dumps
from lab.result import case_key

SCHEMA: Final = 1

Row = dict[str, Any]
Key = tuple[str, str, int, str, str]


def key_of(row: Mapping[str, Any]) -> Key:
    """What identifies a golden."""
    return (row["kernel"], label_of(row), int(row["seed"]), row["arch"], row["compiler"])


def label_of(row: Mapping[str, Any]) -> str:
    """Case name and axes, the same before and after a line was written."""
    return case_key(row["case"], row["axes"])


def read(path: Path) -> dict[Key, Row]:
    """The goldens of a file by key; none when there is no file. Errors: SpecError naming a line."""
    if not path.is_file():
        return {}
    found: dict[Key, Row] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["schema"] > SCHEMA:
                raise ValueError(f"schema {row['schema']}, this version reads up to {SCHEMA}")
            found[key_of(row)] = row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(
                f"{path}:{number} is no golden ({error})\n"
                "  take the file as it was from git, then run dsv4-lab golden check"
            ) from None
    return found


def write(path: Path, rows: Iterable[Row]) -> None:
    """Replace a file by these goldens, sorted, whole or not at all; no file for no rows."""
    ordered = sorted(rows, key=key_of)
    if not ordered:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{dumps(row)}\n" for row in ordered)
        os.chmod(temporary, 0o644)  # a file for everybody, unlike other temporary ones
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
