"""Argmax: ties, zeros of both signs, NaN, and a plain loop to agree with."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle.argmax import argmax

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("argmax")
test_speed = speed_tests("argmax")

NAN, INF = float("nan"), float("inf")


def by_loop(row: list[float]) -> int:
    """The twin: walk the row, take a number that exceeds the best so far."""
    best = None
    for index, value in enumerate(row):
        if value == value and (best is None or value > row[best]):
            best = index
    return 0 if best is None else best


@pytest.mark.parametrize(
    ("row", "index"),
    [
        ([1, 3, 2], 1),
        ([3, 1, 3], 0),  # the first of equals
        ([-0.0, 0.0], 0),
        ([0.0, -0.0], 0),
        ([-INF, -INF, -INF], 0),
        ([-INF, -1e38, -INF], 1),
        ([NAN, -INF], 1),  # NaN loses even to -inf
        ([NAN, 2, NAN, 5, NAN], 3),
        ([NAN, NAN, NAN], 0),
        ([5, INF, NAN, INF], 1),
        ([1e-45, 0, -1e-45], 0),
    ],
)
def test_small_rows_by_hand(row: list[float], index: int, run: Run) -> None:
    x = np.array([row], np.float32)
    assert argmax(x.astype(np.float64)).tolist() == [index]
    assert run("argmax", T=1, V=len(row), x=x).y.tolist() == [index]


def test_oracle_agrees_with_the_loop() -> None:
    rng = np.random.default_rng(1)
    x = rng.choice([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0], (500, 7), p=[0.4] + [0.1] * 6)
    assert argmax(x).tolist() == [by_loop(list(row)) for row in x]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 31, 1023, 1024, 1025, 4095, 4096, 4101, 8193])
def test_the_last_place_of_every_width_can_win(width: int, run: Run) -> None:
    x = np.zeros((3, width), np.float32)
    x[:, -1] = 1
    assert run("argmax", T=3, V=width, x=x).y.tolist() == [width - 1] * 3


def test_two_equal_peaks_give_the_first_whichever_thread_sees_it(run: Run) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (60, 5000)).astype(np.float32)
    pairs = np.sort(np.array([rng.choice(5000, 2, replace=False) for _ in range(60)]))
    x[np.arange(60)[:, None], pairs] = 2
    assert run("argmax", T=60, V=5000, x=x).y.tolist() == pairs[:, 0].tolist()


def test_the_answer_moves_with_the_columns(run: Run) -> None:
    rng = np.random.default_rng(3)
    x = rng.permutation(3001).astype(np.float32)[None]
    index = int(run("argmax", T=1, V=3001, x=x).y[0])
    for shift in (1, 7, 1024):
        rolled = np.ascontiguousarray(np.roll(x, shift, axis=1))
        assert run("argmax", T=1, V=3001, x=rolled).y[0] == (index + shift) % 3001


def test_scaling_a_row_by_a_power_of_two_changes_nothing(run: Run) -> None:
    x = np.random.default_rng(4).standard_normal((5, 1500)).astype(np.float32)
    plain = run("argmax", T=5, V=1500, x=x).y
    for factor in (2.0**-100, 2.0**90):
        assert np.array_equal(run("argmax", T=5, V=1500, x=x * np.float32(factor)).y, plain)
