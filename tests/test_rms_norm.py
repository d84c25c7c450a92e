"""RMS norms: by hand, in plain loops, and what scaling, zeros and NaN must do."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.rms_norm import rms_norm, rms_norm_f32, rms_norm_head, rms_norm_head_f32

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("rms_norm")
test_speed = speed_tests("rms_norm")
test_contract_f32 = contract_tests("rms_norm_f32")
test_speed_f32 = speed_tests("rms_norm_f32")
test_contract_head = contract_tests("rms_norm_head")
test_speed_head = speed_tests("rms_norm_head")
test_contract_head_f32 = contract_tests("rms_norm_head_f32")
test_speed_head_f32 = speed_tests("rms_norm_head_f32")

ROWS = ["rms_norm", "rms_norm_f32"]
HEADS = ["rms_norm_head", "rms_norm_head_f32"]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plainly(row: list[float], gain: list[float], eps: float) -> list[float]:
    """The twin in plain loops."""
    total = 0.0
    for value in row:
        total += value * value
    root = math.sqrt(total / len(row) + eps)
    return [g * value / root for g, value in zip(gain, row, strict=True)]


@pytest.mark.parametrize("kernel", ROWS)
def test_a_row_by_hand(kernel: str, run: Run) -> None:
    # Squares 1 + 9 + 49 + 1 = 60, mean 15, plus eps 1 is 16, root 4: every step is exact.
    x, w = np.array([[1, -3, 7, 1]], np.float32), np.array([1, 2, -1, 0.5], np.float32)
    wanted = [[0.25, -1.5, -1.75, 0.125]]
    assert rms_norm(x.astype(float), w.astype(float), eps=1.0).tolist() == wanted
    assert run(kernel, T=1, D=4, x=x, w=w, eps=1.0).y.tolist() == wanted


@pytest.mark.parametrize("kernel", HEADS)
def test_two_heads_by_hand(kernel: str, run: Run) -> None:
    # Head 0: squares 16 + 8 = 24 of 2 lanes, mean 12, plus 4 is 16. Head 1 is zero.
    x = np.array([[[4, math.sqrt(8)], [0, 0]]], np.float32)
    got = run(kernel, T=1, H=2, K=2, x=x, eps=4.0).x
    assert got[0, 0, 0] == 1.0
    assert got[0, 0, 1] == np.float32(math.sqrt(8)) / 4
    assert got[0, 1].tolist() == [0, 0]


def test_oracles_agree_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((3, 2, 7)), rng.standard_normal(7)
    for t in range(3):
        wanted = plainly(list(x[t, 0]), list(w), 1e-3)
        assert rms_norm(x[:, 0], w, eps=1e-3)[t] == pytest.approx(wanted, rel=1e-14)
        wanted = plainly(list(x[t, 1]), [1.0] * 7, 1e-3)
        assert rms_norm_head(x, eps=1e-3)[t, 1] == pytest.approx(wanted, rel=1e-14)
    value, magnitude = rms_norm_f32(x[:, 0], w, eps=1e-3)
    assert np.array_equal(value, rms_norm(x[:, 0], w, eps=1e-3))
    assert np.array_equal(magnitude, np.abs(value))
    value, magnitude = rms_norm_head_f32(x, eps=1e-3)
    assert np.array_equal(value, rms_norm_head(x, eps=1e-3))
    assert np.array_equal(magnitude, np.abs(value))


@pytest.mark.parametrize("kernel", ROWS)
def test_scaling_the_row_and_the_root_of_eps_changes_no_byte(kernel: str, run: Run) -> None:
    x, w = normal(3, 777), normal(777, seed=1)
    once = run(kernel, T=3, D=777, x=x, w=w, eps=2.0**-20).y
    scaled = run(kernel, T=3, D=777, x=x * np.float32(8), w=w, eps=2.0**-14).y
    assert scaled.tobytes() == once.tobytes()


@pytest.mark.parametrize("kernel", ROWS)
def test_the_gain_scales_its_own_column(kernel: str, run: Run) -> None:
    x, w = normal(2, 100), np.ones(100, np.float32)
    once = run(kernel, T=2, D=100, x=x, w=w, eps=1e-6).y
    w[37] = -4
    again = run(kernel, T=2, D=100, x=x, w=w, eps=1e-6).y
    once[:, 37] *= -4
    assert again.tobytes() == once.tobytes()


@pytest.mark.parametrize("kernel", ROWS)
def test_a_row_with_a_nan_is_nan_and_its_neighbours_are_not(kernel: str, run: Run) -> None:
    x = normal(3, 600)
    x[1, 599] = np.nan
    got = run(kernel, T=3, D=600, x=x, w=1.0, eps=1e-6).y
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("kernel", HEADS)
def test_a_head_depends_on_its_own_lanes_only(kernel: str, run: Run) -> None:
    x = normal(2, 3, 96)
    once = run(kernel, T=2, H=3, K=96, x=x, eps=1e-6).x
    x[1, 1] *= 5
    again = run(kernel, T=2, H=3, K=96, x=x, eps=1e-6).x
    changed = (again != once).any(axis=-1)
    assert not changed[0].any()
    assert not changed[1, [0, 2]].any()


@pytest.mark.parametrize("kernel", HEADS)
def test_a_normalised_head_has_unit_mean_square(kernel: str, run: Run) -> None:
    got = run(kernel, T=4, H=5, K=512, x=normal(4, 5, 512), eps=1e-6).x
    # eps takes 1e-6 of it, and the roundings far less.
    assert np.abs((got * got).mean(-1) - 1).max() < 2e-6


@pytest.mark.parametrize("kernel", ROWS)
def test_the_first_element_beyond_a_row_does_not_count(kernel: str, run: Run) -> None:
    # D is one more than the block, so that one thread takes two elements and the others one.
    x = np.full((2, 513), 1e3, np.float32)
    x[0] = 1.0
    got = run(kernel, T=2, D=513, x=x, w=1.0, eps=2.0**-40).y
    assert got.tolist() == np.ones((2, 513)).tolist()


@pytest.mark.parametrize("eps", [0.0, -1e-6])
def test_an_eps_that_is_not_positive_is_refused(eps: float, run: Run) -> None:
    with pytest.raises(LaunchError, match="divide by zero"):
        run("rms_norm", T=1, D=8, eps=eps)
