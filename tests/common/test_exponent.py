"""Exponentials with their power apart keep their stated errors; scaling by powers is exact."""

from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime.host import build

SOURCE = Path(__file__).with_name("exponent.cu")
SYMBOLS = {np.dtype("f4"): "", np.dtype("f8"): "_f64"}


def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, power = np.empty_like(x), np.empty_like(x)
    symbol = f"map_exp_scaled{SYMBOLS[x.dtype]}"
    build(SOURCE, defines={}).launch(
        symbol, grid=(x.size, 1, 1), block=(1, 1, 1), args=[x, y, power]
    )
    return y, power


def scaled(x: np.ndarray, power: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    symbol = f"map_scaled{SYMBOLS[x.dtype]}"
    build(SOURCE, defines={}).launch(
        symbol, grid=(x.size, 1, 1), block=(1, 1, 1), args=[x, power, y]
    )
    return y


def worst_spacings(x: np.ndarray) -> float:
    """The largest distance of y * 2^power from e^x, in spacings of y."""
    worst = 0.0
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 60, 10**9, -(10**9)
        for a, y, power in zip(x.tolist(), *(p.tolist() for p in parts(x)), strict=True):
            truth = Decimal(a).exp() / Decimal(2) ** int(power)
            step = Decimal(float(np.spacing(x.dtype.type(y))))
            worst = max(worst, float(abs(Decimal(y) - truth) / step))
    return worst


def spread(limit: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    near = np.arange(-200, 200) * np.log(2) / 2  # where the nearest power changes
    return np.concatenate([rng.uniform(-1, 1, 400), rng.uniform(-limit, limit, 400), near])


@pytest.mark.parametrize(("limit", "spacings"), [(100, 1.1), (1e4, 1.2), (2.0**20 - 1, 2.0)])
def test_float_keeps_its_error(limit: float, spacings: float) -> None:
    assert worst_spacings(spread(limit, 1).astype(np.float32)) < spacings


@pytest.mark.parametrize("limit", [100, 1e6, 1e9])
def test_double_keeps_its_error(limit: float) -> None:
    assert worst_spacings(spread(limit, 2)) < 1.0


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_far_arguments_keep_their_order(dtype: str) -> None:
    x = np.sort(np.geomspace(2.0**20, np.finfo(dtype).max / 2, 200).astype(dtype))
    y, power = parts(np.concatenate([-x[::-1], x]))
    assert (np.diff(power.astype(np.float64)) >= 0).all() and np.isfinite(power).all()
    assert (y > 0.5).all() and (y < 1.5).all()
    assert (power == np.rint(power)).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_minus_infinity_weighs_nothing_and_plus_infinity_is_no_number(dtype: str) -> None:
    y, power = parts(np.array([-np.inf, np.inf, np.nan, -np.finfo(dtype).max], dtype))
    assert y[0] == 0 and power[0] == -np.finfo(dtype).max
    assert np.isnan(y[1:3]).all() and power[1:3].tolist() == [0, 0]
    assert y[3] == 1 and power[3] > power[0]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_scaling_by_a_power_of_two_is_exact_down_to_the_subnormals(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(600).astype(dtype)
    power = rng.integers(-300, 1, 600)
    with np.errstate(under="ignore"):
        expected = np.ldexp(x, power)
    got = scaled(x, power.astype(dtype))
    lost = np.abs(expected) < np.finfo(dtype).tiny
    assert np.array_equal(got[~lost], expected[~lost])
    assert (np.abs(got - expected)[lost] <= np.finfo(dtype).smallest_subnormal).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nothing_is_left_after_the_lowest_power(dtype: str) -> None:
    lowest = np.array([-np.finfo(dtype).max, -np.inf], dtype)
    assert np.abs(scaled(np.ones(2, dtype), lowest).astype(np.float64)).max() < 1e-300
