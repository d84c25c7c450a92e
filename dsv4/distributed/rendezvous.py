"""How the processes of a run find each other: rank 0 waits at an address, the others come there.

Nothing is loaded before all are there and all say that they run the same. Then every two of them
have a connection.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsv4.distributed.frames import HELLO_BYTES, BadFrame, Inbox, Kind, frame_head
from dsv4.distributed.mesh import MESSAGE_BYTES, Mesh, Peer, adopt
from dsv4.errors import PeerError, PeerMismatch, PeerSlow, Refusal

_AGAIN_S: Final = 0.05
_NEEDED: Final = {"rank": int, "world": int, "port": int, "facts": dict}


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 waits."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it is written on a command line."""
        return f"{self.host}:{self.port}"


def parse_address(words: str) -> Address:
    """The address HOST:PORT. Errors: Refusal."""
    host, colon, port = words.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Refusal(
            f"--rendezvous {words} was given\n  it is no HOST:PORT\n  on the command line\n"
            "  write it like --rendezvous 127.0.0.1:29400, the same for every rank"
        )
    return Address(host.strip("[]"), int(port))


def join_mesh(
    rank: int,
    world: int,
    address: Address,
    facts: Mapping[str, Any],
    *,
    timeout_s: float,
    join_timeout_s: float,
) -> Mesh:
    """Connections to all other ranks, once all are there and their facts are the same.

    facts: what every rank must agree on, by name. timeout_s: for each message later.
    Errors: PeerMismatch naming the fact, or a stranger; PeerSlow when not all come in time;
    PeerLost when one goes; Refusal for a rank that cannot be.
    """
    if world < 2 or not 0 <= rank < world:
        raise Refusal(
            f"rank {rank} of {world} was asked for\n"
            "  a run over processes has 2 or more, numbered from 0\n"
            "  in dsv4.distributed\n  give --rank 0 .. --world - 1 to one process each"
        )
    until = time.monotonic() + join_timeout_s
    gate = _Gate(rank, world, address, facts, timeout_s, join_timeout_s, until)
    try:
        return _gather(gate) if rank == 0 else _come(gate)
    except OSError as error:
        raise Refusal(
            f"rank {rank} was to meet the others at {address}\n  {error}\n"
            "  in dsv4.distributed.rendezvous\n"
            "  give an address of rank 0's host with a free port, the same for every rank"
        ) from error


@dataclass(frozen=True, slots=True)
class _Gate:
    """What a rank brings, and how long it waits for the others: until a time, of so many s."""

    rank: int
    world: int
    address: Address
    facts: Mapping[str, Any]
    timeout_s: float
    join_timeout_s: float
    until: float

    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def hello(self, **more: Any) -> bytes:
        return json.dumps(
            {"rank": self.rank, "world": self.world, "facts": dict(self.facts), **more}
        ).encode()

    def mesh(self, peers: dict[int, Peer]) -> Mesh:
        return Mesh(self.rank, self.world, self.timeout_s, peers)

    def late(self, missing: list[int], strangers: list[str]) -> PeerSlow:
        silent = f"; {', '.join(strangers)} came and said nothing" if strangers else ""
        return PeerSlow(
            f"rank {self.rank} waited for all {self.world} ranks at {self.address}\n"
            f"  rank {', '.join(map(str, missing))} did not come within"
            f" {self.join_timeout_s:g} s{silent}\n  in dsv4.distributed.rendezvous\n"
            "  start every rank with the same --rendezvous, or allow more with --load-timeout",
            rank=missing[0],
        )


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection that has not said yet who it is."""

    connection: socket.socket
    address: str
    inbox: Inbox = field(default_factory=lambda: Inbox(HELLO_BYTES))


def _gather(gate: _Gate) -> Mesh:
    """Rank 0: wait for all, compare what they say, and tell each where the others are."""
    peers: dict[int, Peer] = {}
    places: dict[int, tuple[str, int]] = {}
    with _listening(gate.address.host, gate.address.port) as listener:
        try:
            for caller, said in _callers(gate, listener, set(range(1, gate.world)), peers):
                rank = said["rank"]
                peers[rank] = _known(caller, rank)
                _demand_same(gate, rank, said)
                places[rank] = (caller.address.rpartition(":")[0], int(said["port"]))
        except BaseException as error:
            gate.mesh(peers).abort(error)
            raise
    mesh = gate.mesh(peers)
    try:
        for rank in peers:
            mesh.send(rank, Kind.WELCOME, gate.hello(places=places))
    except PeerError as error:
        mesh.abort(error)
        raise
    return mesh


def _come(gate: _Gate) -> Mesh:
    """Another rank: go to rank 0, then to all lower ranks, and wait for the higher ones."""
    first = _connect(gate, 0, gate.address.host, gate.address.port)
    peers = {0: Peer(0, first)}
    with _listening(first.getsockname()[0], 0) as listener:
        mesh = gate.mesh(peers)
        try:
            port = listener.getsockname()[1]
            mesh.send(0, Kind.HELLO, gate.hello(port=port))
            said = json.loads(mesh.receive(0, Kind.WELCOME, timeout_s=gate.left_s()))
            _demand_same(gate, 0, said)
            for rank in range(1, gate.rank):
                host, port = said["places"][str(rank)]
                peers[rank] = Peer(rank, _connect(gate, rank, host, port))
                mesh.send(rank, Kind.HELLO, gate.hello(port=0))
            higher = set(range(gate.rank + 1, gate.world))
            for caller, told in _callers(gate, listener, higher, peers):
                rank = told["rank"]
                peers[rank] = _known(caller, rank)
                _demand_same(gate, rank, told)
        except BaseException as error:
            mesh.abort(error)
            raise
    return mesh


def _callers(
    gate: _Gate, listener: socket.socket, missing: set[int], peers: Mapping[int, Peer]
) -> Iterator[tuple[_Caller, dict[str, Any]]]:
    """Those who come and say who they are, until none is missing.

    One that says something else ends it; one that says nothing is kept waiting.
    """
    waiting: dict[socket.socket, _Caller] = {}
    known = Mesh(gate.rank, gate.world, gate.timeout_s, dict(peers))
    try:
        while missing:
            left_s = gate.left_s()
            if not left_s:
                raise gate.late(sorted(missing), [c.address for c in waiting.values()])
            there = [p.connection for p in peers.values()]
            ready, _, _ = select.select([listener, *waiting, *there], [], [], left_s)
            for source in ready:
                if source is listener:
                    connection, name = listener.accept()
                    connection.setblocking(False)
                    waiting[connection] = _Caller(connection, f"{name[0]}:{name[1]}")
                elif source in waiting:
                    said = _said(gate, waiting[source], missing)
                    if said is not None:
                        missing.remove(said["rank"])
                        yield waiting.pop(source), said
                else:
                    known.peers = dict(peers)
                    known.look()
    except BaseException as error:
        why = str(error).partition("\n")[0] or "the run ended before it began"
        for caller in waiting.values():
            _send_off(caller, gate, why)
        raise
    finally:
        for caller in waiting.values():
            caller.connection.close()


def _said(gate: _Gate, caller: _Caller, missing: set[int]) -> dict[str, Any] | None:
    """What a caller says of itself; None while it has not said all. Errors: PeerMismatch."""
    try:
        data = caller.connection.recv(HELLO_BYTES)
        if not data:
            raise BadFrame("it went away without a word")
        caller.inbox.feed(data)
        if not caller.inbox.messages:
            return None
        kind, body = caller.inbox.messages.popleft()
        said = json.loads(body) if kind is Kind.HELLO else None
        if not isinstance(said, dict) or not _NEEDED.items() <= _kinds(said).items():
            raise BadFrame(f"a message of kind {kind.name} that introduces nobody")
    except BlockingIOError:
        return None
    except (OSError, ValueError, BadFrame) as error:
        _send_off(caller, gate, "no process of this program")
        raise PeerMismatch(
            f"rank {gate.rank} waited for the others at {gate.address}\n"
            f"  {caller.address} came and is no process of this program: {error}\n"
            "  in dsv4.distributed.rendezvous\n"
            "  choose a port that nothing else uses, and start all ranks again"
        ) from None
    if said["world"] == gate.world and said["rank"] in missing:
        return said
    what = f"rank {said['rank']} of {said['world']}"
    _send_off(caller, gate, f"{what} where rank {sorted(missing)} of {gate.world} is missing")
    raise PeerMismatch(
        f"rank {gate.rank} waited for rank {', '.join(map(str, sorted(missing)))} of {gate.world}\n"
        f"  {caller.address} came as {what}\n  at {gate.address}\n"
        "  give every process a --rank of its own and the same --world"
    )


def _kinds(said: Mapping[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in said.items()}


def _send_off(caller: _Caller, gate: _Gate, why: str) -> None:
    """Tell a caller why it is not taken."""
    told = {"rank": gate.rank, "class": "PeerMismatch", "message": why}
    body = json.dumps(told).encode()
    with contextlib.suppress(OSError):
        caller.connection.send(frame_head(Kind.ABORT, len(body)) + body)


def _known(caller: _Caller, rank: int) -> Peer:
    """A caller that is known now, and may send long messages."""
    caller.inbox.limit = MESSAGE_BYTES
    return Peer(rank, adopt(caller.connection), caller.inbox)


def _demand_same(gate: _Gate, rank: int, said: Mapping[str, Any]) -> None:
    """Nothing, if a rank's facts are those of this one. Errors: PeerMismatch naming them."""
    theirs = _flat(said["facts"])
    ours = _flat(json.loads(json.dumps(dict(gate.facts))))
    names = sorted({*theirs, *ours})
    differing = [n for n in names if theirs.get(n) != ours.get(n)]
    if differing:
        lines = "".join(f"  {n}: {theirs.get(n)} there, {ours.get(n)} here\n" for n in differing)
        raise PeerMismatch(
            f"rank {gate.rank} compared itself with rank {rank}\n{lines}"
            "  in dsv4.distributed.rendezvous\n"
            "  start all ranks from one version with the same model, switches and request",
            rank=rank,
        )


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of facts by names with a dot."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{key}".rstrip("."): v for key, v in inner.items()}
    return found


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=64)


def _connect(gate: _Gate, rank: int, host: str, port: int) -> socket.socket:
    """A connection to a rank, which may not be there yet. Errors: PeerSlow."""
    while True:
        try:
            return adopt(socket.create_connection((host, port), timeout=gate.left_s() or _AGAIN_S))
        except (ConnectionRefusedError, ConnectionResetError, TimeoutError):
            if not gate.left_s():
                raise gate.late([rank], []) from None
            time.sleep(min(_AGAIN_S, gate.left_s()))
