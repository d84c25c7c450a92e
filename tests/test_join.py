"""The join of ranks: by hand, in plain loops, side by side in turns, and when a peer is missing."""

import contextlib
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.kernels.join import join_add, join_argmax, mailbox_words, tiles_of
from dsv4.runtime.hostdevice import HostDevice
from dsv4.spec import F32, I32
from lab import testing
from lab.testing import contract_tests, speed_tests
from oracle import join as oracle

test_contract = contract_tests("join_add")
test_argmax_contract = contract_tests("join_argmax")
test_speed = speed_tests("join_add")
test_argmax_speed = speed_tests("join_argmax")


def room(ranks: int, rows: int, width: int) -> dict[str, Any]:
    """Empty mailboxes of all ranks and where each begins, and states at turn 0."""
    words = mailbox_words(ranks, rows, width)
    return {
        "box": np.zeros(ranks * words, np.int32),
        "offsets": words * np.arange(ranks, dtype=np.int64),
        "state": np.zeros((ranks, 2), np.int32),
        "error": np.zeros(ranks, np.int32),
    }


def join(device: Any, x: Any, held: dict[str, Any], *, first: int, spins: int) -> Any:
    """The sums of ranks first.. whose parts these are."""
    ranks = slice(first, first + len(x))
    y = device.empty(x.shape, F32)
    join_add.prepare(
        x, held["box"], held["offsets"], held["state"][ranks], held["error"][ranks], y=y,
        first=first, spins=spins, device=device,
    ).run()  # fmt: skip
    return y


def in_order(x: np.ndarray) -> np.ndarray:
    """The parts [N,T,D] added in float32, one rank after the other."""
    total = x[0].copy()
    for part in x[1:]:
        total += part
    return total


def parts(ranks: int, rows: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((ranks, rows, width)).astype(np.float32)


# ------------------------------------------------------------------ the oracle


def test_the_order_of_the_ranks_decides_what_a_large_part_swallows() -> None:
    # Ranks hold 2^24, 1, 1. From rank 0 on each 1 vanishes beside 2^24; the other way round they
    # would be 2 first, which 2^24 keeps.
    x = np.array([2.0**24, 1, 1]).reshape(3, 1, 1)
    made = oracle.join_add(x, **room(3, 1, 1), first=0)
    assert made["y"].reshape(-1).tolist() == [2.0**24] * 3
    made = oracle.join_add(x[::-1], **room(3, 1, 1), first=0)
    assert made["y"].reshape(-1).tolist() == [2.0**24 + 2] * 3


def test_a_mailbox_holds_two_halves_of_parts_then_flags() -> None:
    # Two ranks, one element: words 0, 1 are the even half, 2, 3 the odd one, 4, 5 the flags.
    held, x = room(2, 1, 1), np.array([1.5, -2.0]).reshape(2, 1, 1)
    first = oracle.join_add(x, **held, first=0)
    bits = [int(np.float32(v).view(np.int32)) for v in (1.5, -2.0)]
    assert first["box"].reshape(2, -1)[:, :6].tolist() == [
        [0, bits[1], 0, 0, 0, 1],
        [bits[0], 0, 0, 0, 1, 0],
    ]
    again = {**held, "box": first["box"], "state": first["state"]}
    second = oracle.join_add(x, **again, first=0)
    assert second["box"].reshape(2, -1)[0, :6].tolist() == [0, bits[1], 0, bits[1], 0, 2]
    assert second["state"].tolist() == [[2, 0], [2, 0]] and first["y"].reshape(-1)[0] == -0.5


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("logits", "ids", "token"),
    [
        ([1.0, 2.0, 2.0], [7, 3, 1], 103),
        ([0.0, -0.0, 0.0], [4, 5, 6], 4),
        ([NAN, -INF, NAN], [1, 2, 3], 102),
        ([NAN, NAN, NAN], [0, 0, 0], 0),
        ([-INF, -INF, 5.0], [9, 8, 99], 299),
    ],
    ids=str,
)
def test_the_lowest_token_with_the_largest_logit_is_taken(
    logits: list[float], ids: list[int], token: int
) -> None:
    offered = np.array(logits, np.float64)[:, None], np.array(ids)[:, None]
    made = oracle.join_argmax(*offered, **room(3, 1, 2), first=0, share=100)
    assert made["y"].tolist() == [[token]] * 3
    # The kernel, one rank after the other: the last finds what all have sent.
    device, held = HostDevice(), room(3, 1, 2)
    for rank in range(3):
        y = device.empty((1, 1), I32)
        own = slice(rank, rank + 1)
        join_argmax.prepare(
            offered[0][own].astype(np.float32), offered[1][own].astype(np.int32), held["box"],
            held["offsets"], held["state"][own], held["error"][own], y=y, first=rank, spins=1,
            share=100, device=device,
        ).run()  # fmt: skip
        assert y.tolist() == [[token if rank == 2 else -1]]
    assert held["error"].tolist() == [3, 3, 0]


# ------------------------------------------------------------------ all ranks side by side


@pytest.mark.parametrize("place", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_ranks_that_choose_at_once_have_the_same_tokens_in_every_turn(place: str) -> None:
    device: Any = testing.cuda() if place == "cuda" else HostDevice(workers=2)
    held, rows = {n: device.to_device(a) for n, a in room(2, 8, 2).items()}, 8
    for turn in range(12 if place == "host" else 1000):
        rng = np.random.default_rng(turn)
        logits = rng.integers(-2, 3, (2, rows)).astype(np.float32)
        ids = rng.integers(0, 50, (2, rows)).astype(np.int32)
        y = device.empty((2, rows), I32)
        join_argmax.prepare(
            device.to_device(logits), device.to_device(ids), held["box"], held["offsets"],
            held["state"], held["error"], y=y, first=0, spins=1 << 30, share=50, device=device,
        ).run()  # fmt: skip
        winner = np.argmax(logits, axis=0)
        want = ids[winner, np.arange(rows)] + 50 * winner
        assert device.to_numpy(y).tolist() == [want.tolist()] * 2, turn
    assert not device.to_numpy(held["error"]).any()


@pytest.mark.parametrize("place", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 131), (2, 1036), (8, 4096)])
def test_ranks_that_run_at_once_have_the_same_sum_in_every_turn(
    rows: int, width: int, place: str
) -> None:
    # Two workers, or one card, run the blocks of two ranks at the same time: each waits for the
    # other's flags.
    device: Any = testing.cuda() if place == "cuda" else HostDevice(workers=2)
    held = {name: device.to_device(array) for name, array in room(2, rows, width).items()}
    turns = 12 if place == "host" else 1000
    for turn in range(turns):
        x = parts(2, rows, width, seed=turn)
        y = device.to_numpy(join(device, device.to_device(x), held, first=0, spins=1 << 30))
        assert y[0].tobytes() == y[1].tobytes() == in_order(x).tobytes(), turn
    assert device.to_numpy(held["state"]).tolist() == [[turns, 0]] * 2
    assert not device.to_numpy(held["error"]).any()


@pytest.mark.gpu2
def test_two_cards_join_through_each_others_memory() -> None:
    if testing.cuda().xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")
    from dsv4.runtime.cuda import cuda_device

    cards, rows, width = [cuda_device(index) for index in (0, 1)], 8, 4096
    for card, other in zip(cards, cards[::-1], strict=True):
        # Another test may have let them see each other already.
        runtime = card.xp.cuda.runtime
        with card.xp.cuda.Device(card.index), contextlib.suppress(runtime.CUDARuntimeError):
            runtime.deviceEnablePeerAccess(other.index)
    words = mailbox_words(2, rows, width)
    held = [
        {name: card.to_device(array) for name, array in room(2, rows, width).items()}
        for card in cards
    ]
    boxes = [one["box"][:words] for one in held]
    at = [card.address(box) for card, box in zip(cards, boxes, strict=True)]
    bound, sums, given = [], [], []
    for rank, card in enumerate(cards):
        away = np.array([(address - at[rank]) // 4 for address in at], np.int64)
        given.append(card.empty((1, rows, width), F32))
        sums.append(card.empty((1, rows, width), F32))
        bound.append(
            join_add.prepare(
                given[rank], boxes[rank], card.to_device(away), held[rank]["state"][:1],
                held[rank]["error"][:1], y=sums[rank], first=rank, spins=1 << 26, device=card,
            )
        )  # fmt: skip
    for turn in range(1000):
        x = parts(2, rows, width, seed=turn)
        for rank, card in enumerate(cards):
            card.write(given[rank], x[rank : rank + 1])
            bound[rank].run()
        made = [card.to_numpy(y) for card, y in zip(cards, sums, strict=True)]
        assert all(y.tobytes() == in_order(x).tobytes() for y in made), turn
    for rank, card in enumerate(cards):
        assert not card.to_numpy(held[rank]["error"]).any()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_rank_may_be_a_turn_ahead_and_overwrites_nothing(rows: int) -> None:
    # Rank 0 gives up on turn 0 at once, so that it is in turn 1 when rank 1 comes to turn 0.
    device, held = HostDevice(), room(2, rows, 700)
    x = [parts(2, rows, 700, seed=turn) for turn in range(2)]
    for turn in range(2):
        assert np.isnan(join(device, x[turn][:1], held, first=0, spins=1)).all()
    assert held["error"].tolist() == [2, 0]
    for turn in range(2):
        y = join(device, x[turn][1:], held, first=1, spins=1)
        assert y[0].tobytes() == in_order(x[turn]).tobytes()
    assert held["error"].tolist() == [2, 0] and held["state"].tolist() == [[2, 0]] * 2


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_a_peer_that_never_comes_ends_the_wait_with_its_number(mode: str) -> None:
    device, held = HostDevice(mode=mode, seed=3), room(3, 2, 600)
    y = join(device, parts(1, 2, 600, seed=1), held, first=1, spins=5)
    assert np.isnan(y).all() and held["error"].tolist() == [0, 3, 0]
    assert held["state"].tolist() == [[0, 0], [1, 0], [0, 0]]


@pytest.mark.parametrize("mode", ["shuffle", "check"])
def test_ranks_that_come_one_after_the_other_agree_once_all_have_sent(mode: str) -> None:
    # The last rank finds all flags; the others, once their parts are sent, would find them too:
    # their second launch of the same turn is made from the same state.
    device, held = HostDevice(mode=mode, seed=5), room(3, 2, 260)
    x = parts(3, 2, 260, seed=2)
    for rank in range(3):
        join(device, x[rank : rank + 1], held, first=rank, spins=1)
    held["state"][:] = 0
    for rank in range(3):
        y = join(device, x[rank : rank + 1], held, first=rank, spins=1)
        assert y[0].tobytes() == in_order(x).tobytes()


def test_a_mailbox_has_room_for_every_flag() -> None:
    for rows, width in ((1, 1), (7, 131), (8, 4096)):
        size = rows * width
        assert mailbox_words(4, rows, width) >= 4 * (2 * size + tiles_of(size))
        assert mailbox_words(4, rows, width) % 4 == 0


def test_more_than_two_ranks_in_a_launch_are_refused() -> None:
    held = room(3, 1, 8)
    with pytest.raises(LaunchError, match="must have begun"):
        join(HostDevice(), parts(3, 1, 8, seed=1), held, first=0, spins=1)
