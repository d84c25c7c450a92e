"""Index lists: known sets, a twin made of sets, and every round of a verification."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle import index_lists as oracle

Run = Callable[..., SimpleNamespace]

test_contract_index_lists_window = contract_tests("index_lists_window")
test_contract_index_lists_redirect = contract_tests("index_lists_redirect")
test_speed_index_lists_window = speed_tests("index_lists_window")
test_speed_index_lists_redirect = speed_tests("index_lists_redirect")

W = 16


def window_lists(
    run: Run, positions: list[int], blocks: list[int], columns: int, **scalars: int
) -> list[list[int]]:
    named = {"window": W, "ring": W, "base": W, **scalars}
    arrays = {"positions": np.int32(positions), "blocks": np.int32(blocks)}
    kernel = "index_lists_redirect" if "transient" in named else "index_lists_window"
    if "first" in named:
        arrays["first"] = np.int32([named.pop("first")])
    got: list[list[int]] = run(kernel, T=len(positions), S=columns, **arrays, **named).ids.tolist()
    return got


# (position, ratio, slots in order, blocks): rings of 16 slots.
KNOWN = [
    (2, 4, [0, 1, 2], 0),
    (3, 4, [0, 1, 2, 3], 1),
    (40, 4, [9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8], 10),
    (40, 8, [9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8], 5),
]


@pytest.mark.parametrize(("position", "ratio", "slots", "blocks"), KNOWN)
def test_known_decode_lists(
    position: int, ratio: int, slots: list[int], blocks: int, run: Run
) -> None:
    assert oracle.visible_blocks([position], ratio).tolist() == [blocks]
    expected = slots + [-1] * (W - len(slots)) + [W + j for j in range(blocks)] + [-1] * 2
    assert window_lists(run, [position], [blocks], W + blocks + 2) == [expected]
    assert oracle.index_lists_window(
        np.array([position]), np.array([blocks]), W, W, W, W + blocks + 2
    ).tolist() == [expected]


def test_known_prefill_list_counts_blocks_from_the_prompt(run: Run) -> None:
    positions = list(range(41))
    blocks = [(t + 1) // 4 for t in positions]
    lists = window_lists(run, positions, blocks, W + 10, ring=41, base=41)
    assert lists[40] == [*range(25, 41), *range(41, 51)]
    assert lists[2] == [0, 1, 2] + [-1] * 23
    assert lists[3] == [0, 1, 2, 3] + [-1] * 12 + [41] + [-1] * 9


@pytest.mark.parametrize(("position", "slots"), [(5, range(6)), (40, range(16))])
def test_known_draft_block_sees_the_ring_and_all_of_itself(
    position: int, slots: range, run: Run
) -> None:
    # Row i of the block sits at position + 1 + i, but all of them list what `position` does.
    lists = window_lists(run, [position] * 3, [3] * 3, W + 3)
    assert lists[0] == lists[1] == lists[2]
    present = [i for i in lists[0] if i >= 0]
    assert sorted(present) == [*slots, 16, 17, 18]
    assert sorted(present) == sorted(oracle.draft_list(position, W, 3).tolist())


def test_oracle_agrees_with_sets() -> None:
    for position in range(3 * W):
        for count in (-1, 0, 3, 9):
            got = oracle.index_lists_window(
                np.array([position]), np.array([count]), W, W, 1000, W + 5
            )[0]
            window = {p % W for p in range(position + 1) if position - p < W}
            blocks = {1000 + j for j in range(5) if j < count}
            assert set(got.tolist()) - {-1} == window | blocks
            assert (got >= 0).sum() == len(window) + len(blocks)


@pytest.mark.parametrize("ratio", [4, 8, 128])
def test_a_block_is_seen_from_its_own_last_position_on(ratio: int, run: Run) -> None:
    positions = list(range(3 * ratio))
    visible = oracle.visible_blocks(positions, ratio)
    lists = window_lists(run, positions, visible.tolist(), W + 4)
    for position, row in zip(positions, lists, strict=True):
        complete = [j for j in range(4) if (j + 1) * ratio - 1 <= position]
        assert [i - W for i in row[W:] if i >= 0] == complete


@pytest.mark.parametrize("around", [W, 2 * W])
@pytest.mark.parametrize("ahead", range(8))
def test_redirected_lists_are_plain_lists_with_the_round_mapped(
    around: int, ahead: int, run: Run
) -> None:
    positions = list(range(around - 9, around + 9))
    for position in positions:
        first = position - ahead
        plain = window_lists(run, [position], [2], W + 3)[0]
        # A slot of the plain list holds the latest position up to the query's that falls on it.
        held = [position - (position - slot) % W if slot >= 0 else -1 for slot in plain[:W]]
        mapped = [
            slot if q < first else 900 + q - first for slot, q in zip(plain[:W], held, strict=True)
        ]
        redirected = window_lists(run, [position], [2], W + 3, first=first, transient=900)[0]
        assert redirected == mapped + plain[W:]


def test_a_round_that_begins_after_the_query_changes_nothing(run: Run) -> None:
    positions = list(range(40))
    blocks = [p // 4 for p in positions]
    plain = window_lists(run, positions, blocks, 24)
    assert window_lists(run, positions, blocks, 24, first=40, transient=900) == plain


def test_a_longer_ring_keeps_what_a_round_would_overwrite(run: Run) -> None:
    # Rows 30 .. 35 of one round in a ring of W + 6 slots: row 30 still sees position 15.
    lists = window_lists(run, [30, 35], [0, 0], W, ring=W + 6)
    assert lists[0][0] == 15 and lists[0][-1] == 30 % 22
    assert lists[1] == [p % 22 for p in range(20, 36)]


def test_a_list_shorter_than_the_window_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="hold the window"):
        window_lists(run, [3], [0], W - 1)


def test_a_ring_shorter_than_the_window_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="share a slot"):
        window_lists(run, [3], [0], W, ring=W - 1)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.integers(0, 5000),
    st.integers(1, 40),
    st.integers(0, 9),
    st.integers(-1, 20),
    st.integers(0, 12),
    st.integers(-3, 12),
)
def test_lists_are_the_sets_they_stand_for(
    position: int, window: int, spare: int, blocks: int, tail: int, ahead: int
) -> None:
    ring, first = window + spare, position - ahead
    got = (
        run_kernel(
            "index_lists_redirect",
            HostDevice(),
            **{"T": 1, "S": window + tail, "window": window, "ring": ring, "base": 10_000},
            positions=np.int32([position]),
            blocks=np.int32([blocks]),
            first=np.int32([first]),
            transient=20_000,
        )
        .ids[0]
        .tolist()
    )
    seen = [p for p in range(max(0, position - window + 1), position + 1)]
    expected = [p % ring if p < first else 20_000 + p - first for p in seen]
    assert got[:window] == expected + [-1] * (window - len(seen))
    complete = list(range(10_000, 10_000 + max(0, min(blocks, tail))))
    assert got[window:] == complete + [-1] * (tail - len(complete))
