"""Streams through NCCL: what crosses, and that a lost or silent peer ends the wait.

NCCL itself needs a GPU for each rank; here a stand-in has its calls. `test_processes` has the test
for two cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dsv4.distributed.links import PROBE_SIZES, StageLinks, probe_links
from dsv4.distributed.mesh import Mesh
from dsv4.distributed.nccl import NcclTransport, open_nccl
from dsv4.errors import PeerLost, PeerSlow
from dsv4.runtime.hostdevice import HostDevice
from tests.distributed.conftest import Pair
from tests.distributed.ends import at_once, racing_clock
from tests.distributed.fake_nccl import WIRES, Nccl

Two = tuple[NcclTransport, NcclTransport]
Opened = Callable[[Mesh, Mesh], Two]


@pytest.fixture(params=[bytes, tuple])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens both communicators."""

    def make(one: Mesh, other: Mesh) -> Two:
        first, second = Nccl(id_type=request.param), Nccl(id_type=request.param)
        WIRES[first.get_unique_id()].joined.set()
        return (
            open_nccl(one, first.library(), timeout_s=60),
            open_nccl(other, second.library(), timeout_s=60),
        )

    yield make
    WIRES.clear()


def streams(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, 4, 64)).astype(np.float32)


def test_streams_cross_byte_for_byte_in_order(pair: Pair, opened: Opened) -> None:
    one, other = opened(*pair())
    device, sent = HostDevice(), [streams(seed) for seed in range(4)]
    arrived = [np.zeros_like(array) for array in sent]
    for array in arrived[:2]:
        other.receive(device, array, 0)
    early = other.crossing()
    for array in sent:
        one.send(device, array, 1)
    for array in arrived[2:]:
        other.receive(device, array, 0)
    early()
    assert other.under_way == {0}
    other.crossing()()
    one.crossing()()
    assert all(np.array_equal(a, b) for a, b in zip(sent, arrived, strict=True))
    one.close()
    other.close()
    assert one.library.nccl.calls == other.library.nccl.calls == ["destroy"]


def test_every_size_of_the_probe_crosses(pair: Pair, opened: Opened) -> None:
    meshes = pair()
    links = [StageLinks(m, t) for m, t in zip(meshes, opened(*meshes), strict=True)]
    assert at_once(*(lambda link=link: probe_links(link, HostDevice()) for link in links)) == [
        None,
        None,
    ]
    assert links[1].transport.moves == len(PROBE_SIZES)


def test_a_peer_that_goes_ends_the_wait_and_the_communicator(pair: Pair, opened: Opened) -> None:
    meshes = pair()
    _, other = opened(*meshes)
    other.receive(HostDevice(), streams(0), 0)
    wait = other.crossing()
    meshes[0].peers[1].connection.close()
    with pytest.raises(PeerLost, match="rank 0"):
        wait()
    assert other.library.nccl.calls == ["abort"]


def test_a_peer_that_never_sends_is_slow(pair: Pair, opened: Opened) -> None:
    meshes = pair(timeout_s=30)
    _, other = opened(*meshes)
    meshes[1].clock = racing_clock()
    other.receive(HostDevice(), streams(0), 0)
    with pytest.raises(PeerSlow, match="NCCL.*\n.*30 s"):
        other.crossing()()
    assert other.library.nccl.calls == ["abort"]


def test_an_error_of_nccl_is_told_with_its_words(pair: Pair, opened: Opened) -> None:
    one, _ = opened(*pair())
    one.send(HostDevice(), streams(0), 1)
    one.receive(HostDevice(), streams(0), 1)
    one.library.nccl.fault = "unhandled system error"
    with pytest.raises(PeerLost, match="unhandled system error"):
        one.crossing()()
    assert one.library.nccl.calls == ["abort"]


def test_a_communicator_that_nobody_joins_is_not_waited_for_for_ever(pair: Pair) -> None:
    one, _ = pair()
    one.clock, nccl = racing_clock(), Nccl()
    try:
        with pytest.raises(PeerSlow, match="join the communicator"):
            open_nccl(one, nccl.library(), timeout_s=5)
    finally:
        WIRES[nccl.get_unique_id()].joined.set()
        WIRES.clear()


def test_a_peer_that_goes_while_all_join_is_lost(pair: Pair) -> None:
    one, other = pair()
    nccl = Nccl()
    other.peers[0].connection.close()
    try:
        with pytest.raises(PeerLost):
            open_nccl(one, nccl.library(), timeout_s=60)
    finally:
        WIRES[nccl.get_unique_id()].joined.set()
        WIRES.clear()


def test_a_communicator_that_cannot_be_says_what_to_do(pair: Pair) -> None:
    one, _ = pair()
    nccl = Nccl(refuses="invalid usage")
    WIRES[nccl.get_unique_id()].joined.set()
    with pytest.raises(PeerLost, match="invalid usage\n.*\n.*GPU of its own"):
        open_nccl(one, nccl.library(), timeout_s=60)
    WIRES.clear()
