"""How processes meet: all of them, each once, all alike, and within a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from dsv4.distributed import rendezvous
from dsv4.distributed.frames import Kind
from dsv4.distributed.mesh import Mesh
from dsv4.distributed.rendezvous import Address, join_mesh, parse_address
from dsv4.errors import PeerError, PeerMismatch, PeerSlow, Refusal
from tests.distributed.ends import at_once, free_port

SAME = {"version": "1", "arms": {"dots": "f32x", "split": [2, 3]}}


def joins(
    port: int, rank: int, world: int, facts: dict[str, Any] = SAME, join_timeout_s: float = 30.0
) -> Callable[[], Mesh]:
    address = Address("127.0.0.1", port)
    return lambda: join_mesh(
        rank, world, address, facts, timeout_s=60.0, join_timeout_s=join_timeout_s
    )


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_two_ranks_can_talk(world: int) -> None:
    port = free_port()
    meshes = at_once(*(joins(port, rank, world) for rank in reversed(range(world))))[::-1]

    def talk(mesh: Mesh) -> dict[int, bytes]:
        mesh.broadcast(Kind.RESULT, bytes([mesh.rank]))
        return mesh.gather(Kind.RESULT)

    heard = at_once(*(lambda mesh=mesh: talk(mesh) for mesh in meshes))
    for rank, words in enumerate(heard):
        assert words == {other: bytes([other]) for other in range(world) if other != rank}
    for mesh in meshes:
        mesh.leave()


def test_a_rank_that_runs_something_else_is_told_apart_by_all() -> None:
    port, other = free_port(), {**SAME, "arms": {"dots": "f64", "split": [2, 3]}}
    # The one that comes last may find nobody any more.
    late = joins(port, 1, 3, join_timeout_s=5)
    told = at_once(joins(port, 0, 3), late, joins(port, 2, 3, other))
    assert all(isinstance(error, PeerError) for error in told), told
    assert isinstance(told[0], PeerMismatch) and isinstance(told[2], PeerMismatch)
    assert "\n  arms.dots: f64 there, f32x here\n" in str(told[0])
    assert "arms.split" not in str(told[0]) and "arms.dots" in str(told[2])


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"", b"dsv4\x08" + bytes(8)],
                         ids=["http", "nothing", "bye"])  # fmt: skip
def test_a_stranger_ends_the_wait_with_its_address(words: bytes) -> None:
    port = free_port()

    def stranger() -> str:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(words)
                    return "{}:{}".format(*connection.getsockname())
            except ConnectionRefusedError:
                continue

    error, address = at_once(joins(port, 0, 2), stranger)
    assert isinstance(error, PeerMismatch) and address in str(error), error


def test_a_stranger_that_says_nothing_keeps_nobody_out() -> None:
    port = free_port()
    silent = socket.socket()

    def comes_after_the_silent_one() -> Mesh:
        while silent.connect_ex(("127.0.0.1", port)):
            continue
        return joins(port, 1, 2)()

    with silent:
        meshes = at_once(joins(port, 0, 2), comes_after_the_silent_one)
    assert [mesh.rank for mesh in meshes] == [0, 1]
    for mesh in meshes:
        mesh.leave()


def test_a_rank_that_does_not_come_is_missed_by_name() -> None:
    port = free_port()
    waited = at_once(joins(port, 0, 3, join_timeout_s=2), joins(port, 1, 3, join_timeout_s=30))
    assert isinstance(waited[0], PeerSlow) and "rank 2 did not come" in str(waited[0])
    assert isinstance(waited[1], PeerSlow), waited[1]
    with pytest.raises(PeerSlow, match="rank 0 did not come"):
        joins(free_port(), 1, 2, join_timeout_s=0.2)()


@pytest.mark.parametrize(("rank", "world"), [(1, 3), (0, 2), (5, 2)])
def test_a_rank_that_nobody_waits_for_is_turned_away(rank: int, world: int) -> None:
    port = free_port()
    address = Address("127.0.0.1", port)

    def comes() -> Mesh:
        # A process that takes itself for what it is not: rank 0 would wait, others are refused.
        gate = rendezvous._Gate(rank, world, address, SAME, 30.0, 30.0, time.monotonic() + 30)
        return rendezvous._come(gate)

    told = at_once(joins(port, 0, 2), comes)
    assert all(isinstance(error, PeerMismatch) for error in told), told
    assert f"rank {rank} of {world}" in str(told[0])


def test_what_cannot_be_is_refused_before_anybody_waits() -> None:
    for rank, world in ((0, 1), (2, 2), (-1, 2)):
        with pytest.raises(Refusal, match="numbered from 0"):
            joins(1, rank, world)()
    for words in ("host", ":1", "host:", "host:x", "host:0", "host:70000"):
        with pytest.raises(Refusal, match="HOST:PORT"):
            parse_address(words)
    assert parse_address("[::1]:80") == Address("::1", 80)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Refusal, match="free port"),
    ):
        joins(taken.getsockname()[1], 0, 2)()
