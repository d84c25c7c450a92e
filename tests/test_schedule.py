"""Schedules: known rows, and what a ring must never do."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract_schedule = contract_tests("schedule")
test_contract_schedule_advance = contract_tests("schedule_advance")
test_speed_schedule = speed_tests("schedule")
test_speed_schedule_advance = speed_tests("schedule_advance")


def test_a_block_is_visible_and_stored_at_its_own_last_position(run: Run) -> None:
    got = run("schedule", T=6, start=np.int32([2]), ring=8, raw=8, ratio=4, base=8)
    assert got.positions.tolist() == [2, 3, 4, 5, 6, 7]
    assert got.blocks.tolist() == [0, 1, 1, 1, 1, 2]
    assert got.index_rows.tolist() == [-1, 0, -1, -1, -1, 1]
    assert got.store_rows.tolist() == [-1, 8, -1, -1, -1, 9]
    assert got.firsts.tolist() == [0, 0, 0, 0, 0, 4]


def test_a_layer_without_blocks_ends_none(run: Run) -> None:
    got = run("schedule", T=9, start=np.int32([0]), ring=4, raw=1, ratio=0, base=4)
    assert set(got.blocks.tolist()) == {0}
    assert set(got.store_rows.tolist()) == set(got.index_rows.tolist()) == {-1}
    assert got.ring_rows.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_rows_of_a_round_never_share_a_slot_with_the_window_before_it(run: Run) -> None:
    window, rows = 16, 8
    ring = window + rows
    for start in range(60):
        got = run("schedule", T=rows, start=np.int32([start]), ring=ring, raw=1, ratio=0, base=0)
        before = {p % ring for p in range(max(0, start - window + 1), start)}
        assert not before & set(got.ring_rows.tolist())
