"""The Hadamard transform: by hand, by counting bits, and the symmetries of the matrix."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.hadamard import hadamard, sylvester

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("hadamard")
test_speed = speed_tests("hadamard")

WIDTHS = [2**i for i in range(1, 11)]


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers: every sum is exact, so kernel and oracle must agree to the byte."""
    return np.random.default_rng(seed).integers(-99, 100, shape).astype(np.float32)


def plainly(x: np.ndarray, scale: float) -> np.ndarray:
    """The twin: entry (i, j) is -1 to the number of bits that i and j share."""
    rows, width = x.shape
    y = np.zeros((rows, width))
    for t in range(rows):
        for j in range(width):
            total = 0.0
            for i in range(width):
                total += float(x[t, i]) * (-1) ** bin(i & j).count("1")
            y[t, j] = scale * total
    return y


def test_four_numbers_by_hand(run: Run) -> None:
    # 1+2+3+4, 1-2+3-4, 1+2-3-4, 1-2-3+4 = 10, -2, -4, 0; times 4^-1/2.
    x = np.array([[1, 2, 3, 4]], np.float32)
    assert hadamard(x.astype(np.float64), 0.5).value.tolist() == [[5, -1, -2, 0]]
    assert run("hadamard", T=1, K=4, x=x, scale=0.5).x.tolist() == [[5, -1, -2, 0]]


@pytest.mark.parametrize("width", [2, 8, 64])
def test_oracle_agrees_with_plain_loops(width: int) -> None:
    x = integers(3, width).astype(np.float64)
    assert np.array_equal(hadamard(x, -0.25).value, plainly(x, -0.25))


def test_oracle_magnitude_bounds_every_result() -> None:
    x = integers(5, 16).astype(np.float64)
    value, magnitude = hadamard(x, -0.5)
    assert magnitude[:, 0].tolist() == [0.5 * sum(abs(v) for v in row) for row in x]
    assert (np.abs(value) <= magnitude).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_whole_numbers_come_out_exactly(width: int, run: Run) -> None:
    x = integers(3, width)
    got = run("hadamard", T=3, K=width, x=x, scale=2.0**-5).x
    assert np.array_equal(got, hadamard(x.astype(np.float64), 2.0**-5).value)


@pytest.mark.parametrize("width", WIDTHS)
def test_twice_is_the_width(width: int, run: Run) -> None:
    matrix = sylvester(width)
    assert np.array_equal(matrix, matrix.T)
    assert np.array_equal(matrix @ matrix, width * np.eye(width))
    x = integers(2, width)
    once = run("hadamard", T=2, K=width, x=x, scale=1.0).x
    twice = run("hadamard", T=2, K=width, x=once.astype(np.float32), scale=1.0 / width).x
    assert np.array_equal(twice, x)


def test_a_unit_vector_gives_a_row_of_signs(run: Run) -> None:
    got = run("hadamard", T=128, K=128, x=np.eye(128, dtype=np.float32), scale=1.0).x
    assert np.array_equal(got, sylvester(128))


def test_a_constant_row_gathers_in_its_first_element(run: Run) -> None:
    got = run("hadamard", T=3, K=128, x=1.0, scale=1.0).x
    assert (got[:, 0] == 128).all()
    assert not got[:, 1:].any()


def test_rows_do_not_mix(run: Run) -> None:
    x = np.zeros((9, 16), np.float32)
    x[4] = integers(16)
    got = run("hadamard", T=9, K=16, x=x, scale=0.25).x
    assert got[4].any()
    assert not np.delete(got, 4, axis=0).any()


@pytest.mark.parametrize("width", [1, 3, 96, 2048])
def test_other_widths_are_refused(width: int, run: Run) -> None:
    with pytest.raises(LaunchError, match="butterfly|power"):
        run("hadamard", T=1, K=width, x=1.0, scale=1.0)


def test_no_sylvester_matrix_of_order_twelve() -> None:
    with pytest.raises(ValueError, match="power of two"):
        sylvester(12)
