"""Messages on a byte stream: a magic word, a kind, a length, then so many bytes."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

MAGIC: Final = b"dsv4"
_HEAD: Final = struct.Struct(">4sBQ")
HELLO_BYTES: Final = 1 << 20
"""The longest message that a process takes from one it does not know yet."""


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1  # who I am and what I run
    WELCOME = 2  # where the others are
    READY = 3  # my part is loaded
    UNIQUE_ID = 4  # how the devices find each other
    STREAMS = 5  # residual streams, from a stage to the next
    RESULT = 6  # what the head said, from the last stage to all
    PROBE = 7  # bytes that have to arrive as they are
    ABORT = 8  # I give up, and why
    BYE = 9  # I am done


class BadFrame(Exception):
    """Bytes that are no message of this program."""


def frame_head(kind: Kind, size_bytes: int) -> bytes:
    """What goes before a message of that many bytes."""
    return _HEAD.pack(MAGIC, kind, size_bytes)


@dataclass(slots=True)
class Inbox:
    """Messages of one sender, as far as their bytes have come. limit: the longest one taken."""

    limit: int
    messages: deque[tuple[Kind, bytes]] = field(default_factory=deque)
    _head: bytearray = field(default_factory=bytearray)
    _body: bytearray = field(default_factory=bytearray)
    _kind: Kind | None = None
    _filled: int = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes. Errors: BadFrame."""
        rest = memoryview(data)
        while True:
            if self._kind is None:
                wanted = _HEAD.size - len(self._head)
                self._head += rest[:wanted]
                rest = rest[wanted:]
                if not self._magic_so_far():
                    raise BadFrame(f"it begins with {bytes(self._head)!r}")
                if len(self._head) < _HEAD.size:
                    return
                self._begin()
            wanted = len(self._body) - self._filled
            some = rest[:wanted]
            self._body[self._filled : self._filled + len(some)] = some
            self._filled += len(some)
            rest = rest[wanted:]
            if self._filled < len(self._body):
                return
            assert self._kind is not None, "a message that has a body has a kind"
            self.messages.append((self._kind, bytes(self._body)))
            self._kind, self._filled = None, 0
            self._head, self._body = bytearray(), bytearray()
            if not rest:
                return

    def _magic_so_far(self) -> bool:
        begun = bytes(self._head[: len(MAGIC)])
        return MAGIC.startswith(begun)

    def _begin(self) -> None:
        _, kind, size = _HEAD.unpack(self._head)
        if kind not in Kind.__members__.values():
            raise BadFrame(f"a message of kind {kind}")
        if size > self.limit:
            raise BadFrame(f"a message of {size} bytes where {self.limit} are the most")
        self._kind, self._body, self._filled = Kind(kind), bytearray(size), 0
