"""Movement: small arrays by hand, plain loops, what must cancel out, ids that no row has."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle import movement
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_embed_contract = contract_tests("movement_embed")
test_gather_contract = contract_tests("movement_gather")
test_gather_bytes_contract = contract_tests("movement_gather_bytes")
test_gather_row_contract = contract_tests("movement_gather_row")
test_scatter_contract = contract_tests("movement_scatter")
test_scatter_bf16_contract = contract_tests("movement_scatter_bf16")
test_scatter_add_contract = contract_tests("movement_scatter_add")
test_add_contract = contract_tests("movement_add")
test_take_contract = contract_tests("movement_take")
test_place_contract = contract_tests("movement_place")
test_repeat_contract = contract_tests("movement_repeat")
test_mean_contract = contract_tests("movement_mean")
test_embed_speed = speed_tests("movement_embed")
test_gather_speed = speed_tests("movement_gather")
test_gather_bytes_speed = speed_tests("movement_gather_bytes")
test_gather_row_speed = speed_tests("movement_gather_row")
test_scatter_speed = speed_tests("movement_scatter")
test_scatter_bf16_speed = speed_tests("movement_scatter_bf16")
test_scatter_add_speed = speed_tests("movement_scatter_add")
test_add_speed = speed_tests("movement_add")
test_take_speed = speed_tests("movement_take")
test_place_speed = speed_tests("movement_place")
test_repeat_speed = speed_tests("movement_repeat")
test_mean_speed = speed_tests("movement_mean")

STRAY = [-1, -(2**31), 2**31 - 1]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


# ------------------------------------------------------------------ the oracle, in plain loops


@pytest.mark.parametrize("oracle", [movement.movement_gather, movement.movement_embed])
def test_gathers_agree_with_plain_loops(oracle: Callable[..., np.ndarray]) -> None:
    x, wanted = normal(4, 3).astype(np.float64), np.array([3, 0, -1, 3, 4, 1])
    got = oracle(x, wanted)
    for a, row in enumerate(wanted):
        for d in range(3):
            assert got[a, d] == x[row, d] if 0 <= row < 4 else np.isnan(got[a, d])


def test_scatters_agree_with_plain_loops() -> None:
    x, y = normal(4, 3).astype(np.float64), normal(5, 3, seed=1).astype(np.float64)
    targets = np.array([4, -1, 0, 5])
    placed, added = y.copy(), y.copy()
    for a, row in enumerate(targets):
        for d in range(3):
            if 0 <= row < 5:
                placed[row, d] = x[a, d]
                added[row, d] = y[row, d] + x[a, d]
    assert np.array_equal(movement.movement_scatter(x, targets, y), placed)
    assert np.array_equal(movement.movement_scatter_add(x, targets, y), added)


def test_windows_and_streams_agree_with_plain_loops() -> None:
    x, y = normal(2, 3).astype(np.float64), normal(2, 7, seed=1).astype(np.float64)
    placed, taken = y.copy(), np.empty((2, 3))
    repeated = np.empty((2, 4, 3))
    for t in range(2):
        for c in range(3):
            placed[t, 2 + c] = x[t, c]
            taken[t, c] = y[t, 2 + c]
            for m in range(4):
                repeated[t, m, c] = x[t, c]
    assert np.array_equal(movement.movement_place(x, 2, y), placed)
    assert np.array_equal(movement.movement_take(y, 2, 3), taken)
    assert np.array_equal(movement.movement_repeat(x, 4), repeated)


def test_mean_agrees_with_float32_loops() -> None:
    x = normal(3, 4, 5)
    got = encode(movement.movement_mean(x.astype(np.float64)), "f32")
    for t in range(3):
        for d in range(5):
            total = np.float32(0)
            for m in range(4):
                total = np.float32(total + x[t, m, d])
            assert got[t, d] == np.float32(total / np.float32(4))


def test_encoding_a_float64_sum_is_the_float32_sum() -> None:
    # The claim behind Exact: also where the smaller addend lies at or below half a spacing.
    rng = np.random.default_rng(2)
    a = (rng.choice([-1, 1], 40000) * np.exp2(rng.integers(-3, 4, 40000))).astype(np.float32)
    a[::2] *= rng.uniform(1, 2, 20000).astype(np.float32)
    b = (a * np.exp2(-rng.integers(20, 60, 40000)) * rng.choice([-1, 1], 40000)).astype(np.float32)
    b[::3] = np.nextafter(b[::3], np.float32(0))
    wide = movement.movement_add(a.astype(np.float64), b.astype(np.float64))
    assert np.array_equal(encode(wide, "f32"), a + b)


# ------------------------------------------------------------------ the kernels


def test_streams_are_added_in_ascending_order(run: Run) -> None:
    # 2^24 swallows each 1 in turn; any other order keeps some of them.
    x = np.array([2**24, 1, 1, -(2**24)], np.float32).reshape(1, 4, 1)
    assert run("movement_mean", T=1, M=4, D=1, x=x).y.tolist() == [[0.0]]
    assert run("movement_mean", T=1, M=4, D=1, x=x[:, [1, 2, 0, 3]].copy()).y.tolist() == [[0.5]]


def test_an_id_outside_reads_as_nan_and_its_neighbours_do_not(run: Run) -> None:
    wanted = ids(1, *STRAY, 6, 0)
    outside = np.array([False, True, True, True, True, False])
    common = dict(D=37, A=6, ids=wanted)
    x = encode(normal(6, 37), "bf16")
    assert np.isnan(run("movement_gather", S=6, x=x, **common).y).all(axis=1).tolist() == (
        outside.tolist()
    )
    embedded = run("movement_embed", V=6, D=37, T=6, table=x, ids=wanted).y
    assert np.array_equal(np.isnan(embedded).any(axis=1), outside)
    codes = np.zeros((6, 37), np.uint8)
    got = run("movement_gather_bytes", S=6, x=codes, **common).y
    assert np.array_equal(got, np.where(outside[:, None], 255, 0) + np.zeros((6, 37)))
    for slot in range(6):
        row = run("movement_gather_row", S=6, D=37, A=6, ids=wanted, slot=slot).y
        assert np.isnan(row).all() == outside[slot]


@pytest.mark.parametrize("kernel", ["movement_scatter", "movement_scatter_add"])
def test_an_id_outside_writes_nowhere(kernel: str, run: Run) -> None:
    y = normal(6, 37)
    got = run(kernel, S=6, D=37, A=4, ids=ids(*STRAY, 6), y=y, x=1.0).y
    assert np.array_equal(got, y)


def test_gathering_what_was_scattered_gives_it_back(run: Run) -> None:
    order = np.random.default_rng(3).permutation(9).astype(np.int32)
    x = normal(9, 131)
    there = run("movement_scatter", S=9, D=131, A=9, ids=order, x=x, y=np.nan).y
    for slot in range(9):
        back = run(
            "movement_gather_row", S=9, D=131, A=9, ids=order, slot=slot, x=there.astype(np.float32)
        ).y
        assert np.array_equal(back, x[slot])


@pytest.mark.parametrize(("width", "offset"), [(64, 0), (64, 36), (63, 37), (1, 99), (100, 0)])
def test_taking_what_was_placed_gives_it_back_and_the_rest_stays(
    width: int, offset: int, run: Run
) -> None:
    x, y = normal(5, width), normal(5, 100, seed=1)
    there = run("movement_place", T=5, S=100, C=width, offset=offset, x=x, y=y).y
    back = run("movement_take", T=5, S=100, C=width, offset=offset, x=there.astype(np.float32)).y
    assert np.array_equal(back, x)
    rest = np.delete(np.arange(100), np.s_[offset : offset + width])
    assert np.array_equal(there[:, rest], y[:, rest])


def test_the_mean_of_repeated_streams_is_the_row(run: Run) -> None:
    x = normal(3, 77)
    streams = run("movement_repeat", T=3, M=4, D=77, x=x).y
    assert np.array_equal(run("movement_mean", T=3, M=4, D=77, x=streams.astype(np.float32)).y, x)


def test_adding_the_negative_gives_zero(run: Run) -> None:
    x = normal(1000)
    assert not run("movement_add", N=1000, x=x, y=-x).y.any()


@pytest.mark.parametrize("offset", [-1, 37, 2**31 - 1])
@pytest.mark.parametrize("kernel", ["movement_take", "movement_place"])
def test_a_window_outside_the_row_is_refused(kernel: str, offset: int, run: Run) -> None:
    with pytest.raises(LaunchError, match="inside the row"):
        run(kernel, T=2, S=100, C=64, offset=offset)


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_outside_the_ids_is_refused(slot: int, run: Run) -> None:
    with pytest.raises(LaunchError, match="one of the ids"):
        run("movement_gather_row", S=4, D=5, A=3, ids=ids(0, 1, 2), slot=slot)
