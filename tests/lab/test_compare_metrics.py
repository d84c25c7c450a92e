"""Norms, bias and worst rows; each against a hand-worked or plain-loop value."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.compare import metrics
from lab.compare.pair import pair
from oracle.formats import decode, encode


def paired(got, ref, fmt="f32"):
    got, ref = np.asarray(got, np.float64), np.asarray(ref, np.float64)
    return pair(encode(got, fmt), ref, fmt, tuple("TDK"[: got.ndim]))


def truncate_to_bf16(x):
    """float32 bits cut off after the upper half: what a kernel without rounding does."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_truncation_hides_from_ulp_and_from_plain_bias_but_not_from_shrink():
    ref = np.random.default_rng(1).standard_normal(20_000)
    both = pair(truncate_to_bf16(ref), ref, "bf16", ("N",))
    assert both.real.max() <= 1.0
    assert abs(metrics.bias(both).z) < 5
    lean = metrics.shrink(both)
    assert lean.z == pytest.approx(-math.sqrt(20_000), rel=1e-3)  # every single one is too small
    assert -0.55 < lean.mean < -0.45
    rounded = metrics.shrink(paired(ref, ref, "bf16"))
    assert abs(rounded.z) < 5 and abs(rounded.mean) < 0.02


def test_rounding_down_shows_in_bias():
    ref = np.random.default_rng(2).standard_normal(20_000)
    codes = encode(ref, "bf16")
    down = np.where(decode(codes, "bf16") > ref, ref - 0.004 * np.abs(ref), ref)
    both = pair(encode(np.minimum(decode(encode(down, "bf16"), "bf16"), ref), "bf16"), ref,
                "bf16", ("N",))  # fmt: skip
    assert metrics.bias(both).z < -20
    assert metrics.bias(both).mean < -0.1


def test_lean_of_exact_results_is_zero_and_not_a_division_by_zero():
    both = paired([1.0, 2.0], [1.0, 2.0])
    assert metrics.bias(both) == metrics.shrink(both) == metrics.Lean(0.0, 0.0)


def test_lean_of_a_few_is_the_binomial_z():
    # Three above by 1, 1, 2 spacings, one below by 1: mean 3/4, z = (3 - 1) / sqrt(4).
    u = 2.0**-23
    both = paired([1 + u, 1 + u, 1 + 2 * u, 1.5 - u], [1, 1, 1, 1.5])
    assert metrics.bias(both) == metrics.Lean(0.75, 1.0)


def test_relative_norm_and_angle_on_paper():
    # got - ref = (0, 1), ||ref|| = 5; the angle between (3,4) and (3,5).
    both = paired([3.0, 5.0], [3.0, 4.0])
    assert metrics.rel_l2(both) == pytest.approx(0.2)
    cosine = (9 + 20) / (5 * math.sqrt(34))
    assert metrics.cos_gap(both) == pytest.approx(1 - cosine)


def test_tiny_angles_survive_where_one_minus_cosine_would_be_rounding():
    ref = np.ones(1000)
    got = ref.copy()
    got[0] = 1 + 2.0**-23
    gap = metrics.cos_gap(paired(got, ref))
    assert gap == pytest.approx((2.0**-46) / 1000 / 2, rel=1e-2)


@pytest.mark.parametrize("power", [-1000, 1000])
def test_norms_neither_overflow_nor_vanish(power):
    both = paired(np.ldexp([3.0, 5.0], power), np.ldexp([3.0, 4.0], power), "f64")
    assert metrics.rel_l2(both) == pytest.approx(0.2)
    assert metrics.cos_gap(both) == pytest.approx(1 - 29 / (5 * math.sqrt(34)))


def test_norms_of_zeros():
    assert metrics.rel_l2(paired([0.0], [0.0])) == 0.0
    assert metrics.rel_l2(paired([1.0], [0.0])) == math.inf
    assert metrics.cos_gap(paired([0.0], [0.0])) == 0.0
    assert metrics.cos_gap(paired([1.0], [0.0])) == 1.0


def test_specials_stay_out_of_norms():
    both = paired([3.0, np.nan, np.inf, 4.0], [3.0, np.nan, np.inf, 4.0])
    assert metrics.rel_l2(both) == 0.0
    assert metrics.bias(both) == metrics.Lean(0.0, 0.0)


def test_zero_signs_are_counted_apart_from_identity():
    both = paired([-0.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    assert metrics.identical(both) == 2
    assert metrics.zero_signs(both) == 1


def test_worst_rows_come_by_bound_use_then_by_count():
    use = np.zeros((3, 2, 4))
    use[2, 1, 0] = 7.0
    use[0, 1, :2] = 3.0
    use[1, 0, :3] = 3.0
    rows = metrics.worst_rows(use, use > 1, ("T", "H", "D"), top=5)
    assert [r.where for r in rows] == [{"T": 2, "H": 1}, {"T": 1, "H": 0}, {"T": 0, "H": 1}]
    assert [(r.failing, r.size, r.use) for r in rows] == [(1, 4, 7.0), (3, 4, 3.0), (2, 4, 3.0)]
    assert metrics.worst_rows(use, use > 1, ("T", "H", "D"), top=1) == rows[:1]


def test_elements_of_a_vector_are_its_rows():
    use = np.array([0.0, 2.0, 0.5])
    rows = metrics.worst_rows(use, use > 1, ("N",), top=5)
    assert [(r.where, r.failing, r.size) for r in rows] == [({"N": 1}, 1, 1), ({"N": 2}, 0, 1)]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 200))
def test_metrics_do_not_depend_on_the_order_of_elements(seed, n):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal(n)
    got = ref * (1 + rng.integers(-3, 4, n) * 2.0**-8)
    shuffle = rng.permutation(n)
    a, b = paired(got, ref, "bf16"), paired(got[shuffle], ref[shuffle], "bf16")
    assert metrics.identical(a) == metrics.identical(b)
    assert metrics.rel_l2(a) == pytest.approx(metrics.rel_l2(b))
    assert metrics.bias(a).z == metrics.bias(b).z


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-20, 20))
def test_metrics_do_not_depend_on_a_power_of_two(seed, power):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal(50)
    got = ref + rng.standard_normal(50) * 0.01
    a, b = paired(got, ref), paired(np.ldexp(got, power), np.ldexp(ref, power))
    assert metrics.rel_l2(a) == pytest.approx(metrics.rel_l2(b))
    assert metrics.bias(a) == metrics.bias(b)
    assert metrics.cos_gap(a) == pytest.approx(metrics.cos_gap(b))
