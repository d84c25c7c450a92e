"""Messages between processes: in order, whole, and never waited for without an end."""

from __future__ import annotations

import pytest

from dsv4.distributed.frames import BadFrame, Inbox, Kind, frame_head
from dsv4.distributed.mesh import Mesh
from dsv4.errors import PeerLost, PeerMismatch, PeerSlow
from tests.distributed.conftest import Pair
from tests.distributed.ends import at_once, racing_clock


def test_messages_arrive_whole_and_in_order_however_they_are_cut() -> None:
    sent = [(Kind.STREAMS, bytes(range(200))), (Kind.BYE, b""), (Kind.RESULT, b"x")]
    data = b"".join(frame_head(kind, len(body)) + body for kind, body in sent)
    for piece in (1, 3, 13, len(data)):
        inbox = Inbox(limit=1000)
        for first in range(0, len(data), piece):
            inbox.feed(data[first : first + piece])
        assert list(inbox.messages) == sent


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1", "begins with"),
        (frame_head(Kind.STREAMS, 1001), "1001 bytes"),
        (b"dsv4\xff" + bytes(8), "kind 255"),
    ],
    ids=["http", "long", "kind"],
)
def test_bytes_of_another_program_are_no_message(data: bytes, says: str) -> None:
    with pytest.raises(BadFrame, match=says):
        Inbox(limit=1000).feed(data)


def test_long_messages_cross_both_ways_at_the_same_time(pair: Pair) -> None:
    bodies = [bytes([rank]) * (8 << 20) for rank in (0, 1)]

    def exchange(mesh: Mesh) -> bytes:
        mesh.send(1 - mesh.rank, Kind.STREAMS, bodies[mesh.rank])
        return mesh.receive(1 - mesh.rank, Kind.STREAMS)

    one, other = pair()
    assert at_once(lambda: exchange(one), lambda: exchange(other)) == bodies[::-1]


def test_a_process_that_goes_is_lost_after_what_it_had_said(pair: Pair) -> None:
    one, other = pair()
    other.send(0, Kind.RESULT, b"last")
    other.peers[0].connection.close()
    with pytest.raises(PeerLost, match="rank 1.*\n.*gone") as lost:
        one.receive(1, Kind.RESULT)
        one.receive(1, Kind.RESULT)
    assert lost.value.rank == 1


def test_sending_to_a_process_that_is_gone_is_a_loss(pair: Pair) -> None:
    one, other = pair()
    other.peers[0].connection.close()
    with pytest.raises(PeerLost):
        one.send(1, Kind.STREAMS, b"x")
        one.send(1, Kind.STREAMS, b"x")


@pytest.mark.parametrize("writing", [False, True])
def test_a_silent_process_is_slow_after_the_set_time(pair: Pair, writing: bool) -> None:
    one, other = pair(timeout_s=0.5)
    one.clock = racing_clock()
    one.peers[1].connection.setblocking(False)
    with pytest.raises(PeerSlow, match="rank 1.*\n.*within 0.5 s") as slow:
        if writing:
            # More than any buffer between the two takes.
            one.send(1, Kind.STREAMS, bytes(64 << 20))
        one.receive(1, Kind.RESULT)
    assert slow.value.rank == 1 and other.peers


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PeerSlow("rank 2 is slow", rank=2), PeerSlow),
        (PeerMismatch("rank 2 differs", rank=2), PeerMismatch),
        (ValueError("a bug"), PeerLost),
        (KeyboardInterrupt(), PeerLost),
    ],
    ids=["slow", "mismatch", "bug", "interrupt"],
)
def test_who_gives_up_tells_the_others_why(
    pair: Pair, error: BaseException, kind: type[Exception]
) -> None:
    one, other = pair()
    other.send(0, Kind.STREAMS, b"on its way before")
    other.abort(error)
    with pytest.raises(kind, match=f"gave up.*{type(error).__name__}") as told:
        one.receive(1, Kind.RESULT)
    assert getattr(told.value, "rank", None) == (getattr(error, "rank", None) or 1)


def test_a_farewell_is_no_loss_and_no_answer(pair: Pair) -> None:
    one, other = pair()
    other.send(0, Kind.RESULT, b"last")
    other.leave()
    assert one.receive(1, Kind.RESULT) == b"last"
    one.look()
    with pytest.raises(PeerMismatch, match="has left"):
        one.receive(1, Kind.RESULT)


def test_another_kind_than_the_one_waited_for_is_a_mismatch(pair: Pair) -> None:
    one, other = pair()
    other.send(0, Kind.STREAMS, b"")
    with pytest.raises(PeerMismatch, match="sent STREAMS"):
        one.receive(1, Kind.RESULT)


def test_garbage_of_a_known_process_is_a_mismatch(pair: Pair) -> None:
    one, other = pair()
    other.peers[0].connection.send(b"\0\1\2 no message of ours")
    with pytest.raises(PeerMismatch, match="begins with"):
        one.receive(1, Kind.RESULT)
