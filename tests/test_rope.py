"""Rotation: known angles, both table builders, and what every rotation must keep."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError, Refusal
from dsv4.rope_table import Yarn, rope_speeds, rope_table
from lab.testing import contract_tests, speed_tests
from oracle.rope import frequencies, rope, table_row

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("rope")
test_speed = speed_tests("rope")

YARN = Yarn(original_length=65536, factor=16.0)
STRETCH = dict(original=65536, factor=16.0)
PLAIN = rope_table(64, 64, 10000.0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def launched(run: Run, x: np.ndarray, table: np.ndarray, positions: list[int], **more: int):
    axes = dict(zip("THKPR", (*x.shape, *table.shape), strict=True))
    where = np.array(positions, np.int32)
    return run("rope", **axes, x=x, table=table, positions=where, **more).x


# ---- the table -----------------------------------------------------------------------------------


def test_speeds_worked_out_in_advance() -> None:
    # theta^(-1/32) for theta = 10000 is 10^(-1/8).
    plain = frequencies(64, 10000.0)
    assert plain[0] == 1
    assert plain[1] == pytest.approx(10.0**-0.125, rel=1e-7)
    assert plain[1] == pytest.approx(0.7498942, rel=1e-7)
    assert plain[16] == pytest.approx(0.01, rel=1e-7)
    assert plain[31] == pytest.approx(1.3335215e-4, rel=1e-7)


def test_stretched_speeds_worked_out_in_advance() -> None:
    # Pairs up to 15 keep their speed, from 25 on they turn 16 times slower, between linearly:
    # pair 16 keeps 9/10 + 1/10 / 16 = 0.90625 of it, pair 20 half and a 32nd.
    plain, slow = frequencies(64, 160000.0), frequencies(64, 160000.0, **STRETCH)
    kept = {1: 1.0, 15: 1.0, 16: 0.90625, 20: 0.53125, 24: 0.15625, 25: 0.0625, 31: 0.0625}
    for pair, share in kept.items():
        assert slow[pair] == pytest.approx(plain[pair] * share, rel=2e-7)
    known = {
        1: 0.68765604, 15: 0.0036355385, 16: 0.0022656249, 20: 2.9697779e-4,
        24: 1.9531251e-5, 25: 5.3723124e-6, 31: 5.6805294e-7,
    }  # fmt: skip
    for pair, speed in known.items():
        assert slow[pair] == pytest.approx(speed, rel=1e-7)


@pytest.mark.parametrize("width", [2, 10, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 160000.0, 1e6])
@pytest.mark.parametrize(
    ("yarn", "stretch"),
    [
        (None, {}),
        (YARN, STRETCH),
        (Yarn(4096, 40.0, 16.0, 2.0), dict(original=4096, factor=40.0, beta_fast=16, beta_slow=2)),
        # Both ends fall on one pair, and nothing divides by zero.
        (Yarn(64, 4.0, 1e9, 1e9), dict(original=64, factor=4.0, beta_fast=1e9, beta_slow=1e9)),
    ],
)
def test_both_builders_make_the_same_bytes(
    width: int, theta: float, yarn: Yarn | None, stretch: dict[str, float]
) -> None:
    speeds = frequencies(width, theta, **stretch)
    assert rope_speeds(width, theta, yarn).tobytes() == np.array(speeds, np.float32).tobytes()
    for first in (0, 1, 4095, 131071, 1_048_570):
        made = rope_table(3, width, theta, yarn, first=first)
        for row in range(3):
            wanted = np.array(table_row(first + row, speeds), np.float32)
            assert made[row].tobytes() == wanted.tobytes()


def test_the_angle_is_rounded_before_its_cosine_is_taken() -> None:
    # At position 131071 the rounding moves the angle of pair 1 by 0.0022 at most, and by more than
    # a rounding of the cosine could.
    speed = float(rope_speeds(64, 160000.0, YARN)[1])
    angle = float(np.float32(131071 * speed))
    assert angle != 131071 * speed
    row = rope_table(1, 64, 160000.0, YARN, first=131071)[0]
    assert row[2] == np.float32(math.cos(angle))
    assert abs(float(row[2]) - math.cos(131071 * speed)) > 1e-5


def test_tables_that_cannot_be_are_refused() -> None:
    with pytest.raises(Refusal, match="pairs"):
        rope_table(4, 63, 10000.0)
    with pytest.raises(Refusal, match="counts positions"):
        rope_table(2, 64, 10000.0, first=2**24 - 1)


# ---- the rotation --------------------------------------------------------------------------------


def test_known_rotations_come_out_as_worked(run: Run) -> None:
    # Position 3, pair 1: (1, 0) turns by 3 * 0.7498942.
    x = np.zeros((1, 1, 64), np.float32)
    x[0, 0, 2] = 1.0
    got = launched(run, x, PLAIN, [3])
    assert got[0, 0, 2:4] == pytest.approx([-0.62792668, 0.77827250], rel=2e-7)
    back = launched(run, got.astype(np.float32), PLAIN, [3], inverse=1)
    assert back[0, 0, 2:4] == pytest.approx([1, 0], abs=2e-7)
    far = rope_table(1, 64, 160000.0, YARN, first=1000)
    turned = rope(x.astype(float), far.astype(float), np.array([0]), inverse=0).value
    assert turned[0, 0, 2:4] == pytest.approx([-0.93843509, 0.34545561], abs=6e-8)


def test_a_quarter_turn_by_hand(run: Run) -> None:
    # cos 0, sin 1: (a, b) becomes (-b, a); the first two of five lanes stay.
    x = np.array([[[7, 8, 9, 1, 2]]], np.float32)[..., :4]
    table = np.array([[0, 1]], np.float32)
    assert launched(run, x, table, [0]).tolist() == [[[7, 8, -1, 9]]]
    assert launched(run, x, table, [0], inverse=1).tolist() == [[[7, 8, 1, -9]]]


@pytest.mark.parametrize("inverse", [0, 1])
def test_oracle_agrees_with_plain_loops(inverse: int) -> None:
    x, table = normal(4, 3, 12).astype(float), rope_table(9, 8, 100.0).astype(float)
    positions = np.array([8, 0, 3, 3])
    value, magnitude = rope(x, table, positions, inverse=inverse)
    for t in range(4):
        for h in range(3):
            for lane in range(12):
                if lane < 4:
                    assert value[t, h, lane] == x[t, h, lane]
                    assert magnitude[t, h, lane] == 0
                    continue
                c, s = table[positions[t], (lane - 4) // 2 * 2 : (lane - 4) // 2 * 2 + 2]
                s = -s if inverse else s
                first = lane - lane % 2
                a, b = x[t, h, first], x[t, h, first + 1]
                terms = (a * c, -b * s) if lane % 2 == 0 else (a * s, b * c)
                assert value[t, h, lane] == pytest.approx(sum(terms), abs=1e-15)
                assert magnitude[t, h, lane] == pytest.approx(abs(terms[0]) + abs(terms[1]))


def test_the_inverse_undoes_the_rotation(run: Run) -> None:
    x = normal(5, 3, 96)
    table = rope_table(5, 64, 160000.0, YARN, first=131067)
    there = launched(run, x, table, [0, 1, 2, 3, 4]).astype(np.float32)
    back = launched(run, there, table, [0, 1, 2, 3, 4], inverse=1)
    assert not np.array_equal(there, x)
    assert np.array_equal(back[..., :32], x[..., :32])
    # Twice two products and a sum, 2 u each, and cos^2 + sin^2 is 1 within 2 u.
    pairs = np.abs(x[..., 32::2]) + np.abs(x[..., 33::2])
    assert (np.abs(back - x)[..., 32:] <= 8 * 2.0**-24 * np.repeat(pairs, 2, axis=-1)).all()


def test_lanes_before_the_last_ones_keep_their_bytes(run: Run) -> None:
    x = np.arange(2 * 2 * 70, dtype=np.uint32).reshape(2, 2, 70) * 7919
    x = (x | 0x00400000).view(np.float32)
    got = launched(run, x, PLAIN, [5, 63]).astype(np.float32)
    assert got[..., :6].tobytes() == x[..., :6].tobytes()


def test_heads_of_a_row_share_its_angle(run: Run) -> None:
    x = np.repeat(normal(3, 1, 64), 7, axis=1)
    got = launched(run, x, PLAIN, [9, 0, 40])
    assert (got == got[:, :1]).all()
    assert np.array_equal(got[1], x[1])


def test_a_position_outside_the_table_gives_nan_in_its_row_only(run: Run) -> None:
    x = normal(5, 2, 70)
    got = launched(run, x, PLAIN, [63, 64, -1, 2**31 - 1, -(2**31)])
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1:, :, 6:]).all()
    assert np.array_equal(got[..., :6], x[..., :6])


def test_sizes_that_do_not_pair_up_are_refused(run: Run) -> None:
    for width, head in ((3, 8), (10, 8)):
        with pytest.raises(LaunchError, match="pairs"):
            run("rope", T=1, H=1, K=head, R=width, P=1, table=1.0, positions=0)
