"""The rest of a layer's front: by hand, what is written where, and how errors are carried."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle.finish_error import Carried, index_row, key_row, normed

Run = Callable[..., SimpleNamespace]

test_contract_window = contract_tests("finish_window")
test_contract_blocks = contract_tests("finish_blocks")
test_contract_indexed = contract_tests("finish_indexed")
test_speed_window = speed_tests("finish_window")
test_speed_blocks = speed_tests("finish_blocks")
test_speed_indexed = speed_tests("finish_indexed")

EPS = 1e-6


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rows_of(T: int, first: int, C: int, ring: int) -> dict[str, np.ndarray]:
    """Places of T rows from position `first` on."""
    p = np.arange(first, first + T)
    ends = (p + 1) % C == 0
    lists = {"positions": p, "ring_rows": p % ring, "index_rows": np.where(ends, p // C, -1)}
    lists["firsts"] = np.where(ends, p + 1 - C, 0)
    return {name: a.astype(np.int32) for name, a in lists.items()}


def indexed(run: Run, T: int, first: int, **more: Any) -> SimpleNamespace:
    """Rows of a layer with blocks of 4: 5 places of tokens, then of blocks; 4 keys."""
    named: dict[str, Any] = dict(
        latent=f32(T, 6), kv=f32(T, 72), raw_kv=f32(16, 144), raw_score=f32(16, 144, seed=1),
        index_kv=f32(16, 64), index_score=f32(16, 64, seed=2), ape=0.0, index_ape=0.0,
        table=1.0, kvc=7.0, keys=7.0, ring=5, scale=0.25, eps=EPS, **rows_of(T, first, 4, 5),
    )  # fmt: skip
    named |= dict.fromkeys(("q_gain", "kv_gain", "gain", "index_gain"), 1.0)
    sizes = dict(T=T, Q=6, K=72, R=8, P=16, N=9, C=4, S=16, B=4, I=32)
    return run("finish_indexed", **sizes, **{**named, **more})


def test_a_window_row_by_hand(run: Run) -> None:
    # Lanes 3 and 4 by turns have mean square 12.5, so the factor is 0.2828. Through FP8 with the
    # scale 2^-8: 0.8485 = 217.2 * 2^-8 becomes 224 * 2^-8, and 1.1314 = 289.6 * 2^-8 becomes
    # 288 * 2^-8.
    # The angle is a quarter: (a, b) becomes (-b, a), and no quantiser follows.
    kv = np.tile(np.float32([3, 4]), 36)[None]
    got = run(
        "finish_window", T=1, Q=2, K=72, R=8, P=2, N=3, ring=3, eps=EPS,
        latent=np.float32([[5, -5]]), q_gain=np.float32([2, 1]), kv=kv, kv_gain=1.0,
        table=np.tile(np.float32([0, 1]), (2, 4)), positions=np.int32([1]), ring_rows=np.int32([2]),
        kvc=7.0,
    )  # fmt: skip
    assert got.compact.tolist() == [[2.0, -1.0]]
    assert (got.kvc[:2] == 7.0).all()
    assert got.kvc[2, :64].tolist() == [224 / 256, 288 / 256] * 32
    turned = np.tile([-4, 3], 4) / np.sqrt(12.5)
    assert np.allclose(got.kvc[2, 64:], turned, rtol=1e-6)


def test_a_row_that_ends_no_block_writes_its_own_place_only(run: Run) -> None:
    got = indexed(run, 3, 4)
    assert (got.keys == 7.0).all() and (got.kvc[5:] == 7.0).all()
    assert (got.kvc[[4, 0, 1]] != 7.0).any(axis=1).all() and (got.kvc[2:4] == 7.0).all()


def test_a_row_that_ends_a_block_writes_the_block_as_well(run: Run) -> None:
    got = indexed(run, 3, 5)
    assert (got.kvc[6] != 7.0).any() and (got.keys[1] != 7.0).any()
    assert (got.kvc[[5, 7, 8]] == 7.0).all() and (got.keys[[0, 2, 3]] == 7.0).all()


def test_a_block_without_a_place_is_left_out(run: Run) -> None:
    for place in (-1, 4, 2**31 - 1):
        got = indexed(run, 1, 7, index_rows=np.int32([place]))
        assert (got.kvc[5:] == 7.0).all() and (got.keys == 7.0).all()


def test_a_block_is_turned_by_its_first_position(run: Run) -> None:
    table = np.tile(np.float32([1, 0]), (16, 4))
    table[4] = np.tile(np.float32([0, 1]), 4)  # a quarter at position 4, where block 1 begins
    plain, turned = indexed(run, 1, 7), indexed(run, 1, 7, table=table)
    straight = indexed(run, 1, 7, table=np.tile(np.float32([1, 0]), (16, 4)))
    assert np.array_equal(turned.kvc[6, 64::2], -straight.kvc[6, 65::2])
    assert np.array_equal(turned.kvc[6, 65::2], straight.kvc[6, 64::2])
    assert np.array_equal(turned.kvc[6, :64], plain.kvc[6, :64])
    assert np.array_equal(turned.kvc[2], straight.kvc[2])  # the row itself is at position 7


def test_rows_of_a_round_are_single_rows(run: Run) -> None:
    together = indexed(run, 4, 4)
    for t in range(4):
        mine = dict(latent=f32(4, 6)[t : t + 1], kv=f32(4, 72)[t : t + 1])
        alone = indexed(run, 1, 4 + t, **mine)
        assert np.array_equal(alone.compact[0], together.compact[t])
        place = (4 + t) % 5
        assert np.array_equal(alone.kvc[place], together.kvc[place])
    assert np.array_equal(alone.kvc[6], together.kvc[6])
    assert np.array_equal(alone.keys, together.keys)


def perturbed(rows: Carried, seed: int) -> np.ndarray:
    """The rows with every element off by as much as it may be, at most."""
    rng = np.random.default_rng(seed)
    return rows.value + rows.error * rng.uniform(-1.0, 1.0, rows.value.shape)


# Errors far larger than those of float32, so that codes and scales do flip.
@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("clamp_only", [0, 1])
def test_the_carried_error_covers_what_keys_may_become(size: float, clamp_only: int) -> None:
    x, table = f32(9, 136).astype(np.float64), f32(12, 8, seed=1).astype(np.float64)
    rows, at = Carried(x, size * np.abs(x)), np.arange(9)
    found = key_row(rows, table, at, clamp_only)
    for seed in range(40):
        off = key_row(Carried(perturbed(rows, seed), 0.0 * x), table, at, clamp_only).value
        assert (np.abs(off - found.value) <= found.error * (1 + 1e-9)).all()


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.05])
def test_the_carried_error_covers_what_index_keys_may_become(size: float) -> None:
    x, table = f32(9, 64).astype(np.float64), f32(12, 8, seed=1).astype(np.float64)
    rows, at = Carried(x, size * np.abs(x)), np.arange(9)
    found = index_row(rows, table, at, 0.125)
    for seed in range(40):
        off = index_row(Carried(perturbed(rows, seed), 0.0 * x), table, at, 0.125).value
        assert (np.abs(off - found.value) <= found.error * (1 + 1e-9)).all()


@pytest.mark.parametrize("size", [1e-7, 1e-4])
def test_the_carried_error_covers_what_a_norm_may_become(size: float) -> None:
    x, gain = f32(9, 70).astype(np.float64), f32(70, seed=3).astype(np.float64)
    rows = Carried(x, size * np.abs(x))
    found = normed(*rows, gain, EPS)
    for seed in range(40):
        off = normed(perturbed(rows, seed), 0.0 * x, gain, EPS).value
        # To first order; the second is as small again.
        assert (np.abs(off - found.value) <= found.error * (1 + 10 * size)).all()
