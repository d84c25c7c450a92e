"""The join of ranks: by hand, in plain loops, side by side in turns, and when a peer is missing."""

import contextlib
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.kernels.join import join_add, join_argmax, mailbox_letters, tiles_of, vector_of
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
    letters = mailbox_letters(ranks, rows, width)
    return {
        "box": np.zeros(ranks * letters, np.int64),
        "offsets": letters * np.arange(ranks, dtype=np.int64),
        "state": np.zeros((ranks, tiles_of(rows * width)), np.int32),
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


def test_a_mailbox_holds_two_halves_of_stamped_letters() -> None:
    # Two ranks, one element: letters 0, 1 are the even half, 2, 3 the odd one, by source.
    held, x = room(2, 1, 1), np.array([1.5, -2.0]).reshape(2, 1, 1)
    first = oracle.join_add(x, **held, first=0)
    bits = [int(np.float32(v).view(np.uint32)) for v in (1.5, -2.0)]
    assert first["box"].reshape(2, 4).tolist() == [
        [0, 1 << 32 | bits[1], 0, 0],
        [1 << 32 | bits[0], 0, 0, 0],
    ]
    again = {**held, "box": first["box"], "state": first["state"]}
    second = oracle.join_add(x, **again, first=0)
    assert second["box"].reshape(2, 4)[0].tolist() == [
        0, 1 << 32 | bits[1], 0, 2 << 32 | bits[1],
    ]  # fmt: skip
    assert second["state"].tolist() == [[2], [2]] and first["y"].reshape(-1)[0] == -0.5


def test_a_letter_of_an_earlier_turn_is_late_and_one_of_a_later_turn_is_there() -> None:
    # Rank 0 of two in turn 4, four elements: rank 1's letters, behind those of rank 0 itself.
    held, x = room(2, 1, 4), np.zeros((1, 1, 4))
    stamps, value = np.array([5, 3, 7, 0]), int(np.float32(2.5).view(np.uint32))
    held["box"][4:8] = stamps << 32 | value
    held["state"][:] = 4
    made = oracle.join_add(x, **{**held, "state": held["state"][:1], "error": [0]}, first=0)
    assert np.array_equal(made["y"].reshape(-1), [2.5, NAN, 2.5, NAN], equal_nan=True)
    assert made["error"].tolist() == [2] and made["state"].tolist() == [[5]]


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


# ------------------------------------------------------------------ which letters are taken


def letters(values: np.ndarray, stamps: np.ndarray) -> np.ndarray:
    """Letters as an array of i64."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((stamps % 2**32).astype(np.uint64) << np.uint64(32) | bits).view(np.int64)


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
@pytest.mark.parametrize("turn", [6, 7, 2**31 - 1, 2**32 - 2, 2**32 - 1], ids=str)
@pytest.mark.parametrize("width", [257, 260, 514], ids=str)
def test_letters_are_taken_by_their_stamps_alone(width: int, turn: int, mode: str) -> None:
    # Every letter is of some turn near this one, and every block counts turns alone.
    rng, ranks, rank = np.random.default_rng(turn), 3, 1
    held, tiles = room(ranks, 3, width), tiles_of(3 * width)
    turns = (turn + np.arange(tiles)) % 2**32
    stamps = turn + rng.integers(-3, 4, held["box"].shape)
    held["box"][:] = letters(rng.standard_normal(stamps.shape), stamps)
    held["state"][rank] = turns.astype(np.uint32).view(np.int32)
    x, own = parts(1, 3, width, seed=turn), slice(rank, rank + 1)
    given = {**held, "state": held["state"][own], "error": held["error"][own]}
    want = oracle.join_add(x.astype(np.float64), **given, first=rank)
    y = join(HostDevice(mode=mode, seed=1), x, held, first=rank, spins=3)
    assert np.array_equal(y, want["y"], equal_nan=True) and 0 < np.isnan(y).sum() < y.size
    assert np.array_equal(held["box"], want["box"])
    assert np.array_equal(held["state"][own], want["state"])
    assert held["error"].tolist() == [0, 3, 0]


@pytest.mark.parametrize("width", [257, 260], ids=str)
@pytest.mark.parametrize("peer", [0, 2])
def test_one_letter_that_is_missing_is_one_element_that_is_nan(width: int, peer: int) -> None:
    # Its value is there already, under the stamp of two turns before.
    x, rank, size = parts(3, 1, width, seed=9), 1, width
    for missing in (0, 1, 255, 256, width - 1):
        held = room(3, 1, width)
        held["state"][:] = 2
        for source in (0, 2):
            begin = int(held["offsets"][rank]) + source * size
            stamps = np.full(size, 3)
            stamps[missing] -= 2 * (source == peer)
            held["box"][begin : begin + size] = letters(x[source, 0], stamps)
        y = join(HostDevice(), x[rank : rank + 1].copy(), held, first=rank, spins=2)
        want = in_order(x)
        want[0, missing] = np.nan
        assert np.array_equal(y[0], want, equal_nan=True)
        assert held["error"].tolist() == [0, peer + 1, 0]


@pytest.mark.parametrize("behind", [0, 1], ids=["logit", "token"])
def test_a_row_without_its_logit_or_its_token_has_none(behind: int) -> None:
    held, device = room(2, 3, 2), HostDevice()
    stamps = np.ones((3, 2), np.int64)
    stamps[1, behind] = -1
    pairs = np.stack([[9.0, 9.0, -9.0], np.array([70, 71, 72], np.int32).view(np.float32)], axis=1)
    held["box"][6:12] = letters(pairs, stamps).reshape(-1)
    y, zeros = device.empty((1, 3), I32), np.zeros((1, 3))
    join_argmax.prepare(
        zeros.astype(np.float32), zeros.astype(np.int32), held["box"], held["offsets"],
        held["state"][:1], held["error"][:1], y=y, first=0, spins=2, share=50, device=device,
    ).run()  # fmt: skip
    assert y.tolist() == [[70, -1, 0]] and held["error"].tolist() == [2, 0]


def test_stamps_go_on_over_the_end_of_their_numbers() -> None:
    held, turn = room(2, 2, 131), 2**32 - 3
    held["state"][:] = np.uint32(turn).view(np.int32)
    held["box"][:] = letters(np.zeros(held["box"].shape), np.full(held["box"].shape, turn - 1))
    device = HostDevice(workers=2)
    for seed in range(6):
        x = parts(2, 2, 131, seed)
        y = join(device, x, held, first=0, spins=1 << 30)
        assert y[0].tobytes() == y[1].tobytes() == in_order(x).tobytes(), seed
    assert held["state"].tolist() == [[3]] * 2 and not held["error"].any()


@pytest.mark.parametrize("mode", ["shuffle", "check"])
def test_ranks_of_a_launch_meet_in_letters_only(mode: str) -> None:
    # Blocks run one after the other here: whoever comes second finds the other's letters.
    device, held, x = HostDevice(mode=mode, seed=2), room(2, 1, 12), parts(2, 1, 12, seed=4)
    y = join(device, x, held, first=0, spins=2)
    late = [bool(np.isnan(row).all()) for row in y]
    assert sorted(late) == [False, True]
    assert y[late.index(False)].tobytes() == in_order(x).tobytes()
    assert held["error"].tolist() == ([2, 0] if late[0] else [0, 1])


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
    # other's letters.
    device: Any = testing.cuda() if place == "cuda" else HostDevice(workers=2)
    held = {name: device.to_device(array) for name, array in room(2, rows, width).items()}
    turns = 12 if place == "host" else 1000
    for turn in range(turns):
        x = parts(2, rows, width, seed=turn)
        y = device.to_numpy(join(device, device.to_device(x), held, first=0, spins=1 << 30))
        assert y[0].tobytes() == y[1].tobytes() == in_order(x).tobytes(), turn
    assert (device.to_numpy(held["state"]) == turns).all()
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
    count = mailbox_letters(2, rows, width)
    held = [
        {name: card.to_device(array) for name, array in room(2, rows, width).items()}
        for card in cards
    ]
    boxes = [one["box"][:count] for one in held]
    at = [card.address(box) for card, box in zip(cards, boxes, strict=True)]
    bound, sums, given = [], [], []
    for rank, card in enumerate(cards):
        away = np.array([(address - at[rank]) // 8 for address in at], np.int64)
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
    assert held["error"].tolist() == [2, 0] and (held["state"] == 2).all()


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_a_peer_that_never_comes_ends_the_wait_with_its_number(mode: str) -> None:
    device, held = HostDevice(mode=mode, seed=3), room(3, 2, 600)
    y = join(device, parts(1, 2, 600, seed=1), held, first=1, spins=5)
    assert np.isnan(y).all() and held["error"].tolist() == [0, 3, 0]
    assert held["state"].tolist() == [[0] * 3, [1] * 3, [0] * 3]


@pytest.mark.parametrize("mode", ["shuffle", "check"])
def test_ranks_that_come_one_after_the_other_agree_once_all_have_sent(mode: str) -> None:
    # The last rank finds all letters; the others, once their parts are sent, would find them too:
    # their second launch of the same turn is made from the same state.
    device, held = HostDevice(mode=mode, seed=5), room(3, 2, 260)
    x = parts(3, 2, 260, seed=2)
    for rank in range(3):
        join(device, x[rank : rank + 1], held, first=rank, spins=1)
    held["state"][:] = 0
    for rank in range(3):
        y = join(device, x[rank : rank + 1], held, first=rank, spins=1)
        assert y[0].tobytes() == in_order(x).tobytes()


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 131), (2, 515), (1, 512), (8, 4096)])
def test_a_thread_has_pairs_where_a_part_is_cut_into_them(rows: int, width: int) -> None:
    size = rows * width
    assert vector_of(size) == (2 if size % 2 == 0 else 1)
    assert tiles_of(size) == -(-size // (256 * vector_of(size)))
    assert mailbox_letters(4, rows, width) == 2 * 4 * size


def test_more_than_two_ranks_in_a_launch_are_refused() -> None:
    held = room(3, 1, 8)
    with pytest.raises(LaunchError, match="must have begun"):
        join(HostDevice(), parts(3, 1, 8, seed=1), held, first=0, spins=1)
