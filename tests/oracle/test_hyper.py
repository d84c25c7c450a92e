"""Hyper-connections: what Sinkhorn leaves, a twin in plain loops, and which index is summed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.hyper import collapse, expand, head_weights, sigmoid, split_mixing

NUMBERS = st.floats(-30, 30, allow_nan=False)


def plain_split(mix, scale, base, m, iterations, eps):
    """The same coefficients by one loop for each sum."""
    pre = [1 / (1 + math.exp(-(mix[i] * scale[0] + base[i]))) + eps for i in range(m)]
    post = [2 / (1 + math.exp(-(mix[m + i] * scale[1] + base[m + i]))) for i in range(m)]
    z = [
        [mix[2 * m + j * m + k] * scale[2] + base[2 * m + j * m + k] for k in range(m)]
        for j in range(m)
    ]
    c = []
    for row in z:
        e = [math.exp(v - max(row)) for v in row]
        c.append([v / sum(e) + eps for v in e])
    for turn in range(iterations):
        if turn:
            c = [[v / (sum(row) + eps) for v in row] for row in c]
        totals = [sum(c[j][k] for j in range(m)) + eps for k in range(m)]
        c = [[c[j][k] / totals[k] for k in range(m)] for j in range(m)]
    return pre, post, c


@pytest.mark.parametrize("copies", [1, 2, 4])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_split_is_the_plain_loops(copies, iterations):
    rng = np.random.default_rng(copies)
    rows = (2 + copies) * copies
    mix, base, scale = rng.normal(0, 2, rows), rng.normal(0, 1, rows), rng.normal(1, 0.3, 3)
    got = split_mixing(mix[None], scale, base, copies=copies, iterations=iterations, eps=1e-6)
    for a, b in zip(got, plain_split(mix, scale, base, copies, iterations, 1e-6), strict=True):
        np.testing.assert_allclose(a[0], b, rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(NUMBERS, min_size=24, max_size=24), st.integers(1, 25))
def test_sources_of_every_target_copy_sum_to_one(mix, iterations):
    got = split_mixing(
        np.array([mix]), np.ones(3), np.zeros(24), copies=4, iterations=iterations, eps=1e-6
    )
    assert np.isfinite(got.comb).all() and (got.comb >= 0).all()
    # A column sums to s / (s + eps), and its sum s is never below four times eps.
    np.testing.assert_allclose(got.comb.sum(axis=1), 1.0, atol=0.2)
    if np.ptp(mix[8:]) < 5:
        np.testing.assert_allclose(got.comb.sum(axis=1), 1.0, atol=2e-6)
    assert ((got.pre > 0) & (got.pre <= 1 + 1e-6)).all()
    assert ((got.post >= 0) & (got.post <= 2)).all()


def test_a_row_of_one_large_logit_does_not_divide_by_zero():
    mix = np.zeros((1, 24))
    mix[0, 8:] = -1e4
    mix[0, 8::5] = 1e4  # the diagonal
    comb = split_mixing(mix, np.ones(3), np.zeros(24), copies=4, iterations=20, eps=1e-6).comb
    np.testing.assert_allclose(comb[0], np.eye(4), atol=1e-5)


def test_expand_sums_over_the_source_copy():
    state = np.array([[[1.0], [10.0]]])
    comb = np.array([[[0.0, 1.0], [0.0, 0.0]]])  # copy 0 flows into copy 1, nothing into copy 0
    out = expand(np.zeros((1, 1)), state, np.zeros((1, 2)), comb)
    assert out[0, :, 0].tolist() == [0.0, 1.0]


def test_collapse_and_head_weights_by_hand():
    x = np.array([[[1.0, 2.0], [3.0, -1.0]]])
    assert collapse(x, np.array([[0.5, 2.0]])).tolist() == [[6.5, -1.0]]
    w = head_weights(np.array([[0.0, 3.0]]), np.array([2.0]), np.array([0.0, -6.0]), eps=0.25)
    assert w.tolist() == [[0.75, 0.75]]


def test_sigmoid_has_no_overflow_at_its_ends():
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]
