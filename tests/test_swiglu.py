"""SwiGLU: known values, a decimal twin, gates where plain float formulas lose everything."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle.formats import spacing
from oracle.swiglu import swiglu, swiglu_weighted

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("swiglu")
test_weighted_contract = contract_tests("swiglu_weighted")
test_speed = speed_tests("swiglu")
test_weighted_speed = speed_tests("swiglu_weighted")

# (gate, up, silu(min(gate, 10)) * clamp(up, -10, 10)), from 50-digit arithmetic.
KNOWN = [(12, 11, 99.995460213), (-12, -11, 0.000737301), (3, 2, 5.715444761)]


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def in_decimals(gate: float, up: float, limit: float) -> float:
    """The twin: one element, 50 digits."""
    with localcontext() as context:
        context.prec, context.Emin = 50, -(10**6)
        g, u, top = Decimal(gate), Decimal(up), Decimal(limit)
        if limit > 0:
            g, u = min(g, top), max(-top, min(u, top))
        return float(g / (1 + (-g).exp()) * u)


@pytest.mark.parametrize(("gate", "up", "known"), KNOWN)
def test_known_values_under_a_limit_of_ten(gate: float, up: float, known: float, run: Run) -> None:
    expected = swiglu(row(gate).astype(np.float64), row(up).astype(np.float64), 10.0)[0, 0]
    assert abs(expected - known) < 6e-10
    got = run("swiglu", T=1, D=1, gate=row(gate), up=row(up), limit=10.0).y[0, 0]
    assert abs(got - expected) <= 6 * spacing(expected, "f32")


@pytest.mark.parametrize("limit", [10.0, 0.5, 0.0, -1.0])
def test_oracle_agrees_with_decimals(limit: float) -> None:
    rng = np.random.default_rng(1)
    gate = np.concatenate(
        [rng.uniform(-50, 50, 40), rng.uniform(-200, -80, 20), [0.0, -0.0, 1e-40]]
    )
    up = rng.uniform(-50, 50, gate.size)
    expected = [in_decimals(g, u, limit) for g, u in zip(gate, up, strict=True)]
    assert np.allclose(swiglu(gate[None], up[None], limit)[0], expected, rtol=1e-14, atol=0)


def test_oracle_weighs_whole_rows() -> None:
    rng = np.random.default_rng(2)
    gate, up = rng.standard_normal((2, 3, 4))
    weights = np.array([0.5, -2.0, 0.0])
    plain, weighted = swiglu(gate, up, 1.0), swiglu_weighted(gate, up, weights, 1.0)
    for t in range(3):
        assert np.array_equal(weighted[t], weights[t] * plain[t])


def test_a_gate_of_minus_hundred_gives_its_subnormal_and_not_zero(run: Run) -> None:
    # -100 e^-100 = -3.72e-42: 2655 steps of the smallest subnormal. 1 / (1 + expf(100)) is 0, and
    # expf(-100) alone has two digits.
    got = run("swiglu", T=1, D=2, gate=row(-100, -100), up=row(1, -1), limit=10.0).y[0]
    assert abs(got[0] / 2.0**-149 - in_decimals(-100, 1, 10) / 2.0**-149) <= 1
    assert got[0] == -got[1] < -2000 * 2.0**-149


def test_the_gate_has_no_lower_clamp(run: Run) -> None:
    got = run("swiglu", T=1, D=2, gate=row(-30, -3), up=row(1, 1), limit=2.0).y[0]
    assert np.allclose(got, [in_decimals(-30, 1, 2), in_decimals(-3, 1, 2)], rtol=1e-6, atol=0)


def test_inputs_beyond_the_limit_count_as_the_limit(run: Run) -> None:
    gate, up = row(50, 50, -50, 10), row(50, -50, 50, -1e30)
    got = run("swiglu", T=1, D=4, gate=gate, up=up, limit=10.0).y
    clamped = run(
        "swiglu", T=1, D=4, gate=row(10, 10, -50, 10), up=row(10, -10, 10, -10), limit=10.0
    )
    assert np.array_equal(got, clamped.y)


@pytest.mark.parametrize("limit", [0.0, -10.0])
def test_no_limit_clamps_nothing(limit: float, run: Run) -> None:
    got = run("swiglu", T=1, D=2, gate=row(50, 3), up=row(-50, 1e30), limit=limit).y[0]
    assert np.allclose(got, [-2500, in_decimals(3, 1e30, 0)], rtol=1e-6)


def test_the_sign_of_up_is_the_sign_of_the_result(run: Run) -> None:
    rng = np.random.default_rng(3)
    gate, up = rng.uniform(-120, 20, (2, 4, 100)).astype(np.float32)
    common = dict(T=4, D=100, gate=gate, limit=10.0)
    assert np.array_equal(run("swiglu", up=up, **common).y, -run("swiglu", up=-up, **common).y)


def test_a_weight_of_one_changes_no_byte(run: Run) -> None:
    rng = np.random.default_rng(4)
    gate, up = rng.uniform(-120, 20, (2, 4, 100)).astype(np.float32)
    common = dict(T=4, D=100, gate=gate, up=up, limit=10.0)
    plain = run("swiglu", **common).y
    assert run("swiglu_weighted", weights=1.0, **common).y.tobytes() == plain.tobytes()


def test_a_weight_is_applied_before_the_result_can_underflow(run: Run) -> None:
    # silu(-110) is below every float32; times 2^100 it is an ordinary number.
    gate, weights = row(-110), np.array([2.0**100], np.float32)
    got = run("swiglu_weighted", T=1, D=1, gate=gate, up=1.0, weights=weights, limit=10.0).y[0, 0]
    assert np.isclose(got, in_decimals(-110, 1, 10) * 2.0**100, rtol=1e-6, atol=0)


def test_nan_in_either_input_survives_the_clamps(run: Run) -> None:
    got = run("swiglu", T=1, D=3, gate=row(np.nan, 1, 1), up=row(1, np.nan, 1), limit=10.0).y[0]
    assert np.isnan(got[:2]).all()
    assert np.isfinite(got[2])


def test_infinities_follow_the_limits_of_the_formula(run: Run) -> None:
    gate = row(np.inf, -np.inf, -np.inf, 1, -200, np.inf)
    up = row(2, 2, -2, -np.inf, np.inf, 0)
    got = run("swiglu", T=1, D=6, gate=gate, up=up, limit=0.0).y[0]
    assert got[:5].tolist() == [np.inf, 0, 0, -np.inf, -np.inf]
    assert np.signbit(got[1]) and not np.signbit(got[2])
    assert np.isnan(got[5])
