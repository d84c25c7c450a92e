"""Rounding to bf16: worked by hand, every bf16, every kind of tie."""

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle.cast import cast_bf16
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("cast_bf16")
test_speed = speed_tests("cast_bf16")


def floats(bits: list[int] | np.ndarray) -> np.ndarray:
    return np.asarray(bits, np.uint32).view(np.float32)


def encoded(x: np.ndarray) -> np.ndarray:
    """What the comparator expects of the oracle: its values, encoded once."""
    return encode(cast_bf16(x.astype(np.float64)), "bf16")


def magnitude(code: int) -> Fraction:
    """The value of a positive bf16 code; the code of infinity stands for 2^128 here."""
    exponent, mantissa = code >> 7, code & 127
    return Fraction(2) ** (max(exponent, 1) - 134) * (mantissa + 128 * (exponent > 0))


def code_by_search(bits: int) -> int:
    """The twin in plain steps: of the two bf16 around a float32 the nearer, ties to even."""
    sign, below = bits >> 31 << 15, bits >> 16 & 0x7FFF
    exponent, mantissa = bits >> 23 & 255, bits & 0x7FFFFF
    exact = Fraction(2) ** (max(exponent, 1) - 150) * (mantissa + 2**23 * (exponent > 0))
    to_low, to_high = exact - magnitude(below), magnitude(below + 1) - exact
    if to_low == to_high:
        return sign | below + below % 2
    return sign | (below if to_low < to_high else below + 1)


# 1 + 2^-8 lies between 1 (0x3f80) and 1 + 2^-7 (0x3f81): to the even one, down. 1 + 3 * 2^-8 lies
# between 0x3f81 and 0x3f82: to the even one, up. One bit beside a tie decides it.
@pytest.mark.parametrize(
    ("bits", "code"),
    [
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x3F817FFF, 0x3F81),
        (0xBF818000, 0xBF82),
        (0x7F7F7FFF, 0x7F7F),  # below the middle of the largest bf16 and 2^128
        (0x7F7F8000, 0x7F80),  # on it: infinity, as IEEE says
        (0x00008000, 0x0000),  # half of the smallest subnormal
        (0x00008001, 0x0001),
        (0x80000000, 0x8000),
    ],
)
def test_ties_and_ends_worked_by_hand(bits: int, code: int, run: Run) -> None:
    x = floats([bits])
    assert encoded(x)[0] == code
    assert encode(run("cast_bf16", N=1, x=x).y, "bf16")[0] == code


def test_oracle_agrees_with_the_search_for_the_nearer_neighbour() -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 3000, dtype=np.uint32)
    bits[:1500] = bits[:1500] & 0xFFFF0000 | 0x8000  # ties
    bits = bits[(bits & 0x7F800000) != 0x7F800000]
    assert encoded(floats(bits)).tolist() == [code_by_search(int(b)) for b in bits]


def test_every_bf16_comes_back_unchanged(run: Run) -> None:
    codes = np.arange(2**16, dtype=np.uint32)
    got = run("cast_bf16", N=2**16, x=floats(codes << 16)).y
    numbers = ~np.isnan(got)
    assert np.array_equal(encode(got, "bf16")[numbers], codes[numbers])
    assert np.count_nonzero(~numbers) == 2 * 127


def test_nan_whose_payload_is_all_in_the_lost_half_stays_nan(run: Run) -> None:
    x = floats([0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF])
    assert np.isnan(run("cast_bf16", N=4, x=x).y).all()


def test_rounding_is_not_biased(run: Run) -> None:
    x = np.random.default_rng(6).uniform(1.0, 2.0, 20000).astype(np.float32)
    error = run("cast_bf16", N=x.size, x=x).y - x
    # Uniform within half a spacing of 2^-7: the mean of n errors has this standard deviation.
    deviation = 2.0**-7 / np.sqrt(12 * x.size)
    assert abs(error.mean()) < 4 * deviation
    assert np.abs(error).max() <= 2.0**-8


def test_order_is_kept(run: Run) -> None:
    x = np.sort(np.random.default_rng(7).standard_normal(5000).astype(np.float32))
    assert (np.diff(run("cast_bf16", N=x.size, x=x).y) >= 0).all()
