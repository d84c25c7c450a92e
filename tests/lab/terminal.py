"""A command on a pseudo-terminal: what a person types, and what they see."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab.planted import environment

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")
_LIMIT_S = 90.0


class Terminal:
    """One running command."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.shown = ""
        self._end = end
        self._bytes = b""
        self._told = 0

    def wait_for(self, words: str) -> str:
        """All that was shown since the last call, up to these words; what follows them is kept."""
        begin = time.monotonic()
        while words not in self.shown:
            assert time.monotonic() - begin < _LIMIT_S, f"{words!r} not after {self.shown!r}"
            ready, _, _ = select.select([self._end], [], [], 1.0)
            if not ready:
                continue
            try:
                piece = os.read(self._end, 65536)
            except OSError:  # the command closed its terminal
                piece = b""
            if not piece:
                break
            self._bytes += piece
            self.shown = _ESCAPES.sub("", self._bytes.decode(errors="ignore"))[self._told :]
        assert words in self.shown, f"{words!r} never came; the command showed {self.shown!r}"
        end = self.shown.index(words) + len(words)
        seen, self.shown = self.shown[:end], self.shown[end:]
        self._told += end
        return seen

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._end, text.encode())

    def exit_code(self) -> int:
        """Wait for the command to end."""
        while True:
            try:
                if not os.read(self._end, 65536):
                    break
            except OSError:
                break
        return self.process.wait(_LIMIT_S)


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str, **more: str) -> Iterator[Terminal]:
    """The command on a terminal of its own; it is ended when the `with` ends."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "lab.cli", *arguments]
    more = {"TERM": "xterm", "HOME": str(folder), "IPYTHONDIR": str(folder / "ipython"), **more}
    more.setdefault("DSV4_CACHE", os.environ.get("DSV4_CACHE") or cache())
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env=environment(**more), start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, mine)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(mine)


def cache() -> str:
    """Where compiled kernels lie, although the command's home is another."""
    return str(Path.home() / ".cache" / "dsv4-lab")


def _take_terminal() -> None:
    """Make the terminal the controlling one, so that Ctrl-C becomes an interrupt."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
