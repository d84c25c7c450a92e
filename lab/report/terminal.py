"""Commands run on a terminal of their own, and what they showed, as plain text."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")
_LIMIT_S = 180.0  # a first run compiles every kernel

Action = tuple[str, str | Callable[[], None]]
"""Words to wait for, and then keys to type or something to do."""


def record(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    actions: Sequence[Action] = (),
) -> tuple[str, int]:
    """What a command showed on a terminal, and its exit code.

    Errors: TimeoutError when awaited words do not come.
    """
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        list(command), stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env={**environment, "TERM": "dumb", "COLUMNS": "110"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown, seen = "", 0
    waiting = list(actions)
    begin = time.monotonic()
    try:
        while True:
            ready, _, _ = select.select([mine], [], [], 1.0)
            if time.monotonic() - begin > _LIMIT_S:
                raise TimeoutError(f"{waiting[:1]} never came; it showed {shown[-500:]!r}")
            if ready:
                try:
                    piece = os.read(mine, 65536)
                except OSError:
                    piece = b""
                if not piece:
                    break
                shown += piece.decode(errors="replace")
            if waiting and waiting[0][0] in shown[seen:]:
                words, then = waiting.pop(0)
                seen = shown.index(words, seen) + len(words)
                if callable(then):
                    then()
                else:
                    os.write(mine, then.encode())
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        os.close(mine)
    return plain(shown), process.returncode


def plain(text: str) -> str:
    """Terminal output without escape sequences; a line drawn over is what it was last."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2] if "\r" in line else line for line in text.split("\n")]
    return "\n".join(line.rstrip() for line in lines).strip("\n")
