"""Pairs of connected meshes, closed behind a test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from dsv4.distributed.mesh import Mesh, Peer, adopt

Pair = Callable[..., tuple[Mesh, Mesh]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Makes ranks 0 and 1 of two: `one, other = pair(timeout_s=3)`."""
    opened: list[socket.socket] = []

    def make(timeout_s: float = 60.0) -> tuple[Mesh, Mesh]:
        ends = [adopt(end) for end in socket.socketpair()]
        opened.extend(ends)
        one, other = (Mesh(r, 2, timeout_s, {1 - r: Peer(1 - r, ends[r])}) for r in (0, 1))
        return one, other

    yield make
    for end in opened:
        end.close()
