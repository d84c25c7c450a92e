"""Connections between all processes of a run: messages in order, and nobody waits for ever.

Whatever a process waits for, it listens to all others meanwhile. So it learns at once that one is
gone, whoever that is, and tells the rest when it gives up itself.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dsv4.distributed.frames import BadFrame, Inbox, Kind, frame_head
from dsv4.errors import PeerError, PeerLost, PeerMismatch, PeerSlow

MESSAGE_BYTES: Final = 1 << 36
"""The longest message between processes that know each other."""
_READ_BYTES: Final = 1 << 20
_TOLD: Final[Mapping[str, type[PeerError]]] = {
    "PeerSlow": PeerSlow,
    "PeerMismatch": PeerMismatch,
}


@dataclass(slots=True, eq=False)
class Peer:
    """Another process: its connection, and what it said that nobody has taken yet."""

    rank: int
    connection: socket.socket
    inbox: Inbox = field(default_factory=lambda: Inbox(MESSAGE_BYTES))
    done: bool = False


@dataclass(slots=True, eq=False)
class Mesh:
    """This process among the others of a run. timeout_s: how long each message may take.

    Errors of every call: PeerLost, PeerSlow or PeerMismatch; the mesh is of no use afterwards.
    """

    rank: int
    world: int
    timeout_s: float
    peers: dict[int, Peer]
    clock: Callable[[], float] = time.monotonic

    def send(self, to: int, kind: Kind, body: bytes | memoryview) -> None:
        """Send a message, taking what comes in meanwhile."""
        peer, until = self.peers[to], self.clock() + self.timeout_s
        for part in (frame_head(kind, len(body)), body):
            rest = memoryview(part).cast("B")
            while rest:
                try:
                    rest = rest[peer.connection.send(rest) :]
                except BlockingIOError:
                    self._wait(until, peer, f"take {len(body)} bytes ({kind.name})", writing=True)
                except OSError as error:
                    # What it said before it went may say why.
                    self._listen(peer)
                    raise self._lost(peer, str(error)) from None

    def receive(self, source: int, kind: Kind, *, timeout_s: float | None = None) -> bytes:
        """The next message of a process, which is of that kind."""
        peer = self.peers[source]
        until = self.clock() + (self.timeout_s if timeout_s is None else timeout_s)
        while not peer.inbox.messages:
            if peer.done:
                raise self._other(peer, kind, "has left the run")
            self._wait(until, peer, f"send {kind.name}", writing=False)
        found, body = peer.inbox.messages.popleft()
        if found is not kind:
            raise self._other(peer, kind, f"sent {found.name}")
        return body

    def broadcast(self, kind: Kind, body: bytes | memoryview) -> None:
        """Send a message to all others."""
        for rank in self.peers:
            self.send(rank, kind, body)

    def gather(self, kind: Kind, *, timeout_s: float | None = None) -> dict[int, bytes]:
        """A message of that kind from each of the others, within one time for all."""
        until = self.clock() + (self.timeout_s if timeout_s is None else timeout_s)
        return {
            rank: self.receive(rank, kind, timeout_s=max(0.0, until - self.clock()))
            for rank in self.peers
        }

    def look(self, wait_s: float = 0.0) -> None:
        """Take what has come, waiting at most so long for something to come."""
        waiting = {p.connection: p for p in self.peers.values() if not p.done}
        if not waiting:
            return
        ready, _, _ = select.select(list(waiting), [], [], wait_s)
        for connection in ready:
            self._listen(waiting[connection])

    def slow(self, rank: int, wanted: str, timeout_s: float | None = None) -> PeerSlow:
        """The error of a process that did not do what was wanted in time."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        return PeerSlow(
            f"rank {self.rank} waited for rank {rank} to {wanted}\n"
            f"  nothing came within {limit:g} s\n  over {self._address(self.peers[rank])}\n"
            "  see what that process does, or allow more time with --peer-timeout",
            rank=rank,
        )

    def leave(self) -> None:
        """Say that all is done, and close. A process that is gone by now does not matter."""
        self._last_word(Kind.BYE, b"")

    def abort(self, error: BaseException) -> None:
        """Tell the others, as far as they listen, why this process gives up, and close."""
        lines = [line.strip() for line in str(error).splitlines()]
        # Without where it was found and what to do, which is said here anew.
        message = "; ".join(lines[:-2] if len(lines) > 3 else lines[:1])
        told = {"rank": self.rank, "class": type(error).__name__, "message": message}
        if isinstance(error, PeerError) and error.rank is not None:
            told["rank"] = error.rank
        self._last_word(Kind.ABORT, json.dumps(told).encode())

    def _last_word(self, kind: Kind, body: bytes) -> None:
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.connection.send(frame_head(kind, len(body)) + body)
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)
                # Bytes that wait here would make the close a reset, which takes the word back.
                while peer.connection.recv(_READ_BYTES):
                    pass
            peer.connection.close()
        self.peers = {}

    def _wait(self, until: float, peer: Peer, wanted: str, *, writing: bool) -> None:
        left = until - self.clock()
        if left <= 0:
            raise self.slow(peer.rank, wanted)
        listening = {p.connection: p for p in self.peers.values() if not p.done}
        writers = [peer.connection] if writing else []
        ready, _, _ = select.select(list(listening), writers, [], left)
        for connection in ready:
            self._listen(listening[connection])

    def _listen(self, peer: Peer) -> None:
        """Take all that has come from a process, and act on its last words."""
        try:
            while data := peer.connection.recv(_READ_BYTES):
                peer.inbox.feed(data)
                if len(data) < _READ_BYTES:
                    break
            else:
                self._heed(peer)
                if not peer.done:
                    raise self._lost(peer, "its connection ended")
                return
        except BlockingIOError:
            pass
        except BadFrame as error:
            raise PeerMismatch(
                f"rank {self.rank} listened to rank {peer.rank}\n  {error}\n"
                f"  over {self._address(peer)}\n  start all processes from one version",
                rank=peer.rank,
            ) from None
        except OSError as error:
            self._heed(peer)
            raise self._lost(peer, str(error)) from None
        self._heed(peer)

    def _heed(self, peer: Peer) -> None:
        for kind, body in peer.inbox.messages:
            if kind is Kind.ABORT:
                raise self._told(peer, body)
        if peer.inbox.messages and peer.inbox.messages[-1][0] is Kind.BYE:
            peer.inbox.messages.pop()
            peer.done = True

    def _told(self, peer: Peer, body: bytes) -> PeerError:
        told = json.loads(body)
        rank = int(told["rank"])
        of = "" if rank == peer.rank else f" because of rank {rank}"
        return _TOLD.get(str(told["class"]), PeerLost)(
            f"rank {self.rank} ran with rank {peer.rank}\n"
            f"  that one gave up{of}: {told['class']}: {told['message']}\n"
            f"  over {self._address(peer)}\n  mend that and start all ranks again",
            rank=rank,
        )

    def _lost(self, peer: Peer, why: str) -> PeerLost:
        return PeerLost(
            f"rank {self.rank} ran with rank {peer.rank}\n  that process is gone: {why}\n"
            f"  over {self._address(peer)}\n  see how it ended, and start all ranks again",
            rank=peer.rank,
        )

    def _other(self, peer: Peer, kind: Kind, found: str) -> PeerMismatch:
        return PeerMismatch(
            f"rank {self.rank} waited for {kind.name} of rank {peer.rank}\n"
            f"  that one {found}\n  over {self._address(peer)}\n"
            "  start all ranks with the same arguments",
            rank=peer.rank,
        )

    def _address(self, peer: Peer) -> str:
        with contextlib.suppress(OSError):
            name = peer.connection.getpeername()
            return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) > 1 else "a pair"
        return "a closed connection"


def adopt(connection: socket.socket) -> socket.socket:
    """The connection, ready for a mesh: it never blocks, and small messages leave at once."""
    connection.setblocking(False)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
