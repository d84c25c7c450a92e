"""The rows of a step for all ratios: by hand, and as the single kernels say."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("step_rows")
test_speed = speed_tests("step_rows")


def test_rows_by_hand(run: Run) -> None:
    # A window of 3 in a ring of 5, blocks of 2 from row 5 on; rows at positions 6 and 7.
    rules = np.array([[5, 4, 2, 5, 0], [5, 1, 0, 5, 0], [5, 4, 2, 5, 1]], np.int32)
    got = run("step_rows", G=3, T=2, S=6, start=np.int32([6]), rules=rules, window=3)
    assert got.places[0].tolist() == [[6, 7], [1, 2], [2, 3], [3, 4], [-1, 3], [-1, 8], [0, 6]]
    assert got.places[1].tolist() == [[6, 7], [1, 2], [0, 0], [0, 0], [-1, -1], [-1, -1], [0, 0]]
    assert got.ids[0].tolist() == [[4, 0, 1, 5, 6, 7], [0, 1, 2, 5, 6, 7]]
    assert got.ids[1].tolist() == [[4, 0, 1, -1, -1, -1], [0, 1, 2, -1, -1, -1]]
    assert got.ids[2].tolist() == got.ids[1].tolist()


def test_rows_are_those_of_the_single_kernels(run: Run) -> None:
    rules = np.array([[19, 11, 4, 19, 0], [19, 1, 0, 19, 0], [23, 37, 32, 23, 0]], np.int32)
    for start in (0, 9, 61):
        at = np.int32([start])
        got = run("step_rows", G=3, T=5, S=30, start=at, rules=rules, window=11)
        for rule, places, ids in zip(rules, got.places, got.ids, strict=True):
            ring, raw, ratio, base, _ = (int(n) for n in rule)
            named = dict(ring=ring, raw=raw, ratio=ratio, base=base)
            lists = vars(run("schedule", T=5, start=at, **named))
            assert np.array_equal(places, np.stack(list(lists.values())))
            named = dict(positions=lists["positions"], blocks=lists["blocks"])
            rest = dict(window=11, ring=ring, base=base)
            assert np.array_equal(ids, run("index_lists_window", T=5, S=30, **named, **rest).ids)
