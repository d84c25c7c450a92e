"""The three contract classes on small arrays: what passes, what fails, and the sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.spec import Exact, Ulp, Within
from lab.compare.judge import judge, label
from lab.compare.pair import pair
from oracle.formats import FORMATS, decode, encode, spacing


def judged(contract, got, ref, fmt="bf16", magnitude=None):
    both = pair(encode(got, fmt), np.asarray(ref, np.float64), fmt, ("N",))
    return judge(contract, both, magnitude, {})


def test_labels_are_the_words_of_the_reports():
    assert label(Exact("")) == "bit_exact"
    assert label(Ulp(1.0, "")) == "ulp(1)"
    assert label(Ulp(0.75, "")) == "ulp(0.75)"
    assert label(Within("dot", "", depth="K/128 + 7")) == "dot(K/128+7)"


def test_exact_wants_bytes_and_minds_the_sign_of_zero():
    passed = judged(Exact(""), [1.0, -0.0], [1.001, -0.0])  # 1.001 rounds to 1
    assert passed.passed and passed.bound_use == 0.0
    assert passed.reason == "all 2 elements have the oracle's bytes"
    failed = judged(Exact(""), [1.0, 0.0], [1.0, -0.0])
    assert failed.failing.tolist() == [False, True]
    assert failed.reason == "1 of 2 elements differ from the oracle's bytes"
    assert failed.bound_use == np.inf


def test_ulp_measures_from_the_unrounded_value():
    # bf16 spacing at 1 is 2^-7; 1.003 rounds to 1, code 1 + 2^-7 is 0.616 spacings away.
    far = (1 + 2.0**-7 - 1.003) / 2.0**-7
    result = judged(Ulp(1.0, ""), [1 + 2.0**-7], [1.003])
    assert result.passed and result.bound_use == pytest.approx(far)
    tight = judged(Ulp(0.6, ""), [1 + 2.0**-7], [1.003])
    assert not tight.passed and tight.bound_use == pytest.approx(far / 0.6)
    assert "1 of 1 elements leave ulp(0.6), the worst by 1.03 times its bound" in tight.reason


def test_ulp_zero_allows_only_the_number_itself():
    assert judged(Ulp(0, ""), [1.0], [1.0]).passed
    assert not judged(Ulp(0, ""), [1.0], [1.001]).passed


def test_ulp_of_one_does_not_see_the_sign_of_zero():
    assert judged(Ulp(1, ""), [0.0], [-0.0]).passed


@pytest.mark.parametrize("contract", [Exact(""), Ulp(1e9, ""), Within("dot", "")])
def test_the_law_of_specials_is_above_every_contract(contract):
    nan, inf = np.nan, np.inf
    got = [nan, inf, 1.0, nan, -inf, inf]
    ref = [nan, inf, nan, 1.0, inf, 1.0]
    magnitude = np.array([nan, inf, nan, 1.0, inf, 1.0])
    result = judged(contract, got, ref, magnitude=magnitude)
    assert result.failing.tolist() == [False, False, True, True, True, True]
    assert "4 are NaN or infinite on one side only" in result.reason


def test_sums_that_may_overflow_on_the_way_are_left_out_and_said():
    top = FORMATS["f32"].max
    ref, magnitude = [1.0, 1.0, 2.0], np.array([3 * top, 2.0, 2.0])
    result = judged(Within("dot", ""), [np.nan, 1.0, 2.0], ref, "f32", magnitude)
    assert result.passed and result.unjudged == 1
    assert "1 not judged, their partial sums may overflow" in result.reason


def test_an_output_of_which_nothing_can_be_judged_fails():
    top = FORMATS["f32"].max
    result = judged(Within("dot", ""), [1.0], [1.0], "f32", np.array([3 * top]))
    assert not result.passed
    assert result.reason.startswith("nothing could be judged")


def test_a_sum_of_one_sign_that_overflows_must_be_infinite():
    top = FORMATS["f32"].max
    ref, magnitude = [2 * top, 2 * top], np.array([2 * top, 2 * top])
    result = judged(Within("dot", ""), [np.inf, 1.0], ref, "f32", magnitude)
    assert result.failing.tolist() == [False, True]


def test_a_bound_of_zero_allows_zero_error():
    result = judged(Within("dot", "", depth="0"), [0.0], [0.0], "f32", np.zeros(1))
    assert result.passed and result.bound_use == 0.0


def test_empty_outputs_pass():
    assert judged(Exact(""), np.zeros(0), np.zeros(0)).passed
    assert judged(Within("dot", ""), np.zeros(0), np.zeros(0), "f32", np.zeros(0)).passed


@settings(max_examples=100, deadline=None)
@given(
    fmt=st.sampled_from(["f32", "bf16", "f16", "e4m3"]),
    seed=st.integers(0, 2**32 - 1),
    n=st.floats(0.25, 8),
)
def test_ulp_agrees_with_a_plain_loop(fmt, seed, n):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal(20)
    got = ref + spacing(ref, fmt) * rng.uniform(-10, 10, 20)
    result = judged(Ulp(n, ""), got, ref, fmt)
    stored = decode(encode(got, fmt), fmt)
    for i in range(20):
        outside = abs(stored[i] - ref[i]) / float(spacing(ref[i], fmt)) > n
        assert bool(result.failing[i]) == outside
