"""The double functions of cuda/common/math.cuh keep the errors that their comments state."""

from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np

from dsv4.runtime.host import build

SOURCE = Path(__file__).with_name("functions.cu")


def mapped(symbol: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    build(SOURCE, defines={}).launch(symbol, grid=(x.size, 1, 1), block=(1, 1, 1), args=[x, y])
    return y


def worst_ulp(got: np.ndarray, x: np.ndarray, exact: str) -> float:
    """The largest distance from the exact value, in spacings of double at that value."""
    worst = 0.0
    with localcontext() as context:
        context.prec = 60
        for value, argument in zip(got.tolist(), x.tolist(), strict=True):
            a = Decimal(argument)
            if exact == "exp":
                truth = a.exp()
            else:  # 1 + a would need more digits than the context has
                truth = a - a * a / 2 if a < Decimal("1e-25") else (1 + a).ln()
            step = Decimal(float(np.spacing(float(truth))))
            worst = max(worst, float(abs(Decimal(value) - truth) / step))
    return worst


def test_exp_is_within_one_ulp() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.uniform(-1, 1, 800),
            rng.uniform(-745, 709, 800),
            np.arange(-300, 300) * np.log(2) / 2,  # where the nearest power changes
            np.ldexp(rng.uniform(-1, 1, 100), rng.integers(-60, 0, 100)),
        ]
    )
    assert worst_ulp(mapped("map_exp_f64", x), x, "exp") < 1.0


def test_exp_keeps_subnormals_and_specials() -> None:
    x = np.array([-708.5, -720.0, -745.13, -745.2, -1e300, -np.inf, 709.9, np.inf, np.nan, 0.0])
    y = mapped("map_exp_f64", x)
    assert np.abs(y[:3] - np.exp(x[:3])).max() <= 2.0**-1074
    assert y[3:].tolist()[:-2] == [0.0, 0.0, 0.0, np.inf, np.inf]
    assert np.isnan(y[-2]) and y[-1] == 1.0


def test_log1p_is_within_two_ulp() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            rng.uniform(0, 3, 800),
            np.ldexp(rng.uniform(1, 2, 800), rng.integers(-1000, 1000, 800)),
            np.ldexp(rng.uniform(1, 2, 400), rng.integers(-60, 4, 400)),
            np.ldexp(2.0**0.5, np.arange(0, 60)) - 1.0,  # where the nearest power changes
            np.nextafter(np.ldexp(2.0**0.5, np.arange(0, 60)) - 1.0, 0.0),
        ]
    )
    assert worst_ulp(mapped("map_log1p_f64", x), x, "log1p") < 2.0


def test_log1p_keeps_tiny_arguments_and_specials() -> None:
    x = np.array([0.0, 5e-324, 1e-310, 1e-20, np.inf, np.nan, np.finfo("f8").max])
    y = mapped("map_log1p_f64", x)
    assert np.array_equal(y[:4], x[:4])
    assert y[4] == np.inf and np.isnan(y[5]) and y[6] == np.log(np.finfo("f8").max)
