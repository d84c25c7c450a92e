"""Activation quantisers: known answers, plain loops, and what every quantiser must keep."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.act_quant import act_quant_fp4_inplace, act_quant_fp8, act_quant_fp8_inplace
from oracle.formats import decode

Run = Callable[..., SimpleNamespace]

test_contract_fp8_inplace = contract_tests("act_quant_fp8_inplace")
test_speed_fp8_inplace = speed_tests("act_quant_fp8_inplace")
test_contract_fp8 = contract_tests("act_quant_fp8")
test_speed_fp8 = speed_tests("act_quant_fp8")
test_contract_fp4_inplace = contract_tests("act_quant_fp4_inplace")
test_speed_fp4_inplace = speed_tests("act_quant_fp4_inplace")

E4M3 = [m * 2.0**-9 for m in range(8)]
E4M3 += [m * 2.0**e for e in range(-9, 6) for m in range(8, 16)][:-1]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def row(*values: float, width: int) -> np.ndarray:
    """One row that starts with these values and goes on with zeros."""
    x = np.zeros((1, width), np.float32)
    x[0, : len(values)] = values
    return x


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal values whose groups lie in many binades."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-20, 12, (*shape[:-1], 1)))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def fp8(run: Run, x: np.ndarray, group: int = 128) -> SimpleNamespace:
    return run("act_quant_fp8", T=x.shape[0], K=x.shape[1], x=x, group=group)


def fp8_inplace(run: Run, x: np.ndarray, prefix: int, **options: int) -> np.ndarray:
    t, s = x.shape
    return run("act_quant_fp8_inplace", T=t, S=s, x=x, prefix=prefix, **options).x


def fp4_inplace(run: Run, x: np.ndarray) -> np.ndarray:
    return run("act_quant_fp4_inplace", T=x.shape[0], K=x.shape[1], x=x).x


# ---- plain loops ---------------------------------------------------------------------------------


def nearest(value: float, grid: list[float]) -> int:
    """The index of the nearest grid point, ties to the even index."""
    best = 0
    for code in range(1, len(grid)):
        near, far = abs(value - grid[code]), abs(value - grid[best])
        if near < far or (near == far and code % 2 == 0):
            best = code
    return best


def quantised(group: list[float], grid: list[float], floor: float) -> list[float]:
    """The values code * scale of one group with finite members."""
    amax = max([floor, *map(abs, group)])
    k = -200
    while amax > grid[-1] * 2.0**k:
        k += 1
    return [math.copysign(grid[nearest(abs(v) / 2.0**k, grid)] * 2.0**k, v) for v in group]


def in_groups(x: np.ndarray, group: int, grid: list[float], floor: float) -> np.ndarray:
    y = np.zeros(x.shape)
    for t in range(x.shape[0]):
        for first in range(0, x.shape[1], group):
            part = [float(v) for v in x[t, first : first + group]]
            y[t, first : first + group] = quantised(part, grid, floor)
    return y


def test_the_grids_of_the_twin_are_the_formats() -> None:
    assert decode(np.arange(127, dtype=np.uint8), "e4m3").tolist() == E4M3
    assert decode(np.arange(8, dtype=np.uint8), "e2m1").tolist() == E2M1


def test_oracles_agree_with_plain_loops() -> None:
    x = spread(6, 128, seed=1).astype(float)
    for group in (64, 128):
        wanted = in_groups(x, group, E4M3, 1e-4)
        got = act_quant_fp8_inplace(x, prefix=128, group=group, clamp_only=0)
        assert np.array_equal(got, wanted)
        parts = act_quant_fp8(x, group=group)
        values = decode(parts["codes"], "e4m3") * parts["scales"].repeat(group, -1)
        assert np.array_equal(values, wanted)
    assert np.array_equal(act_quant_fp4_inplace(x), in_groups(x, 32, E2M1, 6 * 2.0**-126))


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_oracles_agree_with_plain_loops_on_any_floats(values: list[float]) -> None:
    x = row(*values, width=64).astype(float)
    got = act_quant_fp8_inplace(x, prefix=64, group=64, clamp_only=0)
    assert np.array_equal(got, in_groups(x, 64, E4M3, 1e-4))
    assert np.array_equal(act_quant_fp4_inplace(x), in_groups(x, 32, E2M1, 6 * 2.0**-126))


# ---- known answers -------------------------------------------------------------------------------


# Largest 1 = 448 / 448: the smallest power with 1 <= 448 s is 2^-8. 1.75 is 448 * 2^-8 itself.
# Below 1e-4 the floor decides: 448 * 2^-23 < 1e-4 <= 448 * 2^-22.
@pytest.mark.parametrize(
    ("values", "wanted", "scale"),
    [
        (
            (1.0, 0.3, -0.7, 0.01, -0.0004, 0.9, 0.123),
            (1.0, 0.3125, -0.6875, 0.009765625, -0.000396728515625, 0.875, 0.125),
            2.0**-8,
        ),
        ((1.75, 0.2), (1.75, 0.203125), 2.0**-8),
        # 1e-4 / 2^-22 is 419.4, between 416 and 448 and nearer to 416.
        ((1e-4, 3e-5), (416 * 2.0**-22, 3.0517578125e-5), 2.0**-22),
        ((0.0, -3e-5), (0.0, -3.0517578125e-5), 2.0**-22),
        ((0.0,), (0.0,), 2.0**-22),
    ],
)
def test_fp8_groups_worked_by_hand(
    values: tuple[float, ...], wanted: tuple[float, ...], scale: float, run: Run
) -> None:
    x = row(*values, width=128)
    for group in (64, 128):
        assert fp8_inplace(run, x, 128, group=group)[0, : len(wanted)].tolist() == list(wanted)
        parts = fp8(run, x, group)
        assert parts.scales[0, 0] == scale
        decoded = decode(parts.codes, "e4m3")[0, : len(wanted)] * scale
        assert decoded.tolist() == list(wanted)


def test_fp4_groups_worked_by_hand(run: Run) -> None:
    # Largest 1 <= 6 * 2^-2. Quotients 1.2, 0.75, 1.75, 3.5, 0.25, 2.8, -0.75: ties to even codes.
    x = row(1.0, 0.3, 0.1875, 0.4375, 0.875, 0.0625, 0.7, -0.1875, width=32)
    wanted = [1.0, 0.25, 0.25, 0.5, 1.0, 0.0, 0.75, -0.25]
    assert act_quant_fp4_inplace(x.astype(float))[0, :8].tolist() == wanted
    assert fp4_inplace(run, x)[0, :8].tolist() == wanted


def test_one_step_beyond_the_largest_code_doubles_the_scale(run: Run) -> None:
    above = np.nextafter(np.float32(1.75), np.float32(2))
    x = np.concatenate([row(1.75, 1 / 256, width=128), row(above, 1 / 256, width=128)])
    assert fp8(run, x).scales[:, 0].tolist() == [2.0**-8, 2.0**-7]


# ---- what quantising must keep -------------------------------------------------------------------


@pytest.mark.parametrize("group", [64, 128])
def test_fp8_twice_is_fp8_once(group: int, run: Run) -> None:
    once = fp8_inplace(run, spread(9, 256), 256, group=group)
    assert np.array_equal(fp8_inplace(run, once.astype(np.float32), 256, group=group), once)


def test_fp4_twice_is_fp4_once(run: Run) -> None:
    once = fp4_inplace(run, spread(9, 160))
    assert np.array_equal(fp4_inplace(run, once.astype(np.float32)), once)


@pytest.mark.parametrize("shift", [-9, 1, 30])
def test_a_power_of_two_moves_to_the_scales(shift: int, run: Run) -> None:
    # No group may meet its floor, neither before nor after.
    x = np.random.default_rng(2).standard_normal((5, 384)).astype(np.float32)
    once, moved = fp8(run, x), fp8(run, np.ldexp(x, shift))
    assert np.array_equal(moved.codes, once.codes)
    assert np.array_equal(moved.scales, np.ldexp(once.scales, shift))
    once, moved = fp4_inplace(run, x), fp4_inplace(run, np.ldexp(x, shift))
    assert np.array_equal(moved, np.ldexp(once, shift))


@pytest.mark.parametrize("group", [64, 128])
def test_codes_times_scales_are_what_the_inplace_quantiser_leaves(group: int, run: Run) -> None:
    x = spread(7, 640, seed=3)
    parts = fp8(run, x, group)
    values = decode(parts.codes, "e4m3") * parts.scales.repeat(group, -1)
    assert np.array_equal(values, fp8_inplace(run, x, 640, group=group))


def test_lanes_from_the_prefix_on_keep_their_bytes(run: Run) -> None:
    x = spread(4, 200, seed=4)
    got = fp8_inplace(run, x, 128)
    assert np.array_equal(got[:, 128:], x[:, 128:])
    assert not np.array_equal(got[:, :128], x[:, :128])


def test_clamp_only_is_the_identity_on_numbers(run: Run) -> None:
    x = spread(4, 192, seed=5)
    assert np.array_equal(fp8_inplace(run, x, 192, clamp_only=1), x)


def test_a_group_has_its_own_scale(run: Run) -> None:
    x = spread(1, 512, seed=6)
    alone = fp8(run, np.ascontiguousarray(x[:, 128:256]))
    x[0, 300] = 1e6
    among = fp8(run, x)
    assert np.array_equal(among.codes[:, 128:256], alone.codes)
    assert among.scales[0, 1] == alone.scales[0, 0]


def test_zeros_of_either_sign_have_the_code_zero(run: Run) -> None:
    x = row(1.0, 0.0, -0.0, -1e-9, 1e-9, width=128)
    assert fp8(run, x).codes[0, 1:5].tolist() == [0, 0, 0, 0]
    # In place the sign of a zero is kept: it is a float again.
    signs = np.signbit(fp8_inplace(run, x, 128)[0, 1:5])
    assert signs.tolist() == [False, True, True, False]


def test_fp4_keeps_the_sign_of_what_rounds_to_zero_but_not_of_zero(run: Run) -> None:
    x = row(1e30, -1e-30, -0.0, 1e-30, -(2.0**-149), width=32)
    got = fp4_inplace(run, x)[0, 1:5]
    assert not got.any()
    assert np.signbit(got).tolist() == [True, False, False, True]


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_specials_do_not_choose_the_scale(special: float, run: Run) -> None:
    x = row(1.0, special, 0.3, -0.0, width=128)
    fp8_top, fp4_top = 448 * 2.0**-8, 6 * 2.0**-2
    for got, top, rest in (
        (fp8_inplace(run, x, 128), fp8_top, 0.3125),
        (fp8_inplace(run, x, 128, clamp_only=1), fp8_top, float(np.float32(0.3))),
        (fp4_inplace(run, x), fp4_top, 0.25),
    ):
        wanted = special if math.isnan(special) else math.copysign(top, special)
        assert np.array_equal(got[0, :3], [1.0, wanted, rest], equal_nan=True)
    parts = fp8(run, x)
    assert parts.scales[0, 0] == 2.0**-8
    assert parts.codes[0, 1] & 0x7F == (0x7F if math.isnan(special) else 0x7E)


def test_more_rows_than_a_grid_has_in_y(run: Run) -> None:
    x = np.tile(row(1.0, 0.3, width=32), (65537, 1))
    got = fp4_inplace(run, x)
    assert (got == got[0]).all()
    assert got[0, :2].tolist() == [1.0, 0.25]


@pytest.mark.parametrize("prefix", [0, 32, 192, -64])
def test_a_prefix_that_is_not_whole_groups_of_the_row_is_refused(prefix: int, run: Run) -> None:
    with pytest.raises(LaunchError, match="prefix"):
        fp8_inplace(run, spread(1, 128), prefix)


def test_rows_that_are_not_whole_groups_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="one scale"):
        fp8(run, spread(1, 192))
    with pytest.raises(LaunchError, match="one scale"):
        fp4_inplace(run, spread(1, 48))
