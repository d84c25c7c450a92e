"""The expert sum: by hand, in plain loops, against scatter_add, and for orders that are none."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle import combine as oracle
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_contract_combine = contract_tests("combine")
test_contract_combine_shared = contract_tests("combine_shared")
test_speed_combine = speed_tests("combine")
test_speed_combine_shared = speed_tests("combine_shared")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def orders(tokens: int, active: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(active, dtype=np.int32), (tokens, 1)), axis=1)


# ------------------------------------------------------------------ the oracle


def test_order_decides_what_a_large_term_swallows() -> None:
    # Slots 2^24, 1, 1, -2^24. In the order 0 1 2 3 each 1 vanishes beside 2^24: 0. In the order
    # 1 2 0 3 they add up to 2 first, which 2^24 keeps: 2.
    c = np.array([2.0**24, 1, 1, -(2.0**24)]).reshape(1, 4, 1)
    assert oracle.combine(c, np.array([[0, 1, 2, 3]])).tolist() == [[0.0]]
    assert oracle.combine(c, np.array([[1, 2, 0, 3]])).tolist() == [[2.0]]


def test_oracle_agrees_with_float32_loops() -> None:
    c, order, shared = normal(3, 5, 4), orders(3, 5), normal(3, 4, seed=2)
    wide = [a.astype(np.float64) for a in (c, shared)]
    got = encode(oracle.combine_shared(wide[0], order.astype(np.int64), wide[1]), "f32")
    for t in range(3):
        for d in range(4):
            total = np.float32(0)
            for slot in order[t]:
                total = np.float32(total + c[t, slot, d])
            assert got[t, d] == np.float32(total + shared[t, d])


def test_relabelling_the_slots_changes_nothing() -> None:
    c, order = normal(2, 6, 5).astype(np.float64), orders(2, 6).astype(np.int64)
    moved = np.random.default_rng(3).permutation(6)
    # Slot moved[i] of the old numbering is slot i of the new one.
    renumbered = np.argsort(moved)[order]
    assert np.array_equal(oracle.combine(c, order), oracle.combine(c[:, moved], renumbered))


# ------------------------------------------------------------------ the kernels


@pytest.mark.parametrize("width", [1, 3, 8, 1030])
def test_the_sum_is_that_of_scatter_adds_by_ascending_expert(width: int, run: Run) -> None:
    c, order = normal(4, 6, width), orders(4, 6)
    y = np.zeros((4, width), np.float32)
    for step in range(6):
        picked = np.take_along_axis(c, order[:, step, None, None], axis=1)[:, 0].copy()
        ids = np.arange(4, dtype=np.int32)
        y = encode(run("movement_scatter_add", S=4, D=width, A=4, x=picked, ids=ids, y=y).y, "f32")
    got = run("combine", T=4, A=6, D=width, contributions=c, order=order).y
    assert encode(got, "f32").tobytes() == y.tobytes()


def test_shared_is_added_after_the_whole_sum(run: Run) -> None:
    # 2^24 + 1 + 1 is 2^24; -2^24 as the shared expert leaves 0, as the first term 2.
    c = np.array([1, 1], np.float32).reshape(1, 2, 1)
    shared = np.array([[2**24]], np.float32)
    common = dict(T=1, A=2, D=1, order=np.array([[0, 1]], np.int32))
    assert run("combine_shared", contributions=c, shared=shared, **common).y[0, 0] == 2**24 + 2
    lost = np.array([2**24, 1], np.float32).reshape(1, 2, 1)
    assert run("combine_shared", contributions=lost, shared=1.0, **common).y[0, 0] == 2**24


@pytest.mark.parametrize("stray", [-1, 3, 2**31 - 1, -(2**31)])
def test_an_entry_that_is_no_slot_makes_its_token_nan_and_no_other(stray: int, run: Run) -> None:
    order = np.array([[0, 1, 2], [2, stray, 0], [1, 0, 2]], np.int32)
    y = run("combine", T=3, A=3, D=5, contributions=normal(3, 3, 5), order=order).y
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_a_sum_of_negative_zeros_is_positive_zero(run: Run) -> None:
    y = run("combine", T=1, A=2, D=4, contributions=-0.0, order=orders(1, 2)).y
    assert not np.signbit(y).any()
