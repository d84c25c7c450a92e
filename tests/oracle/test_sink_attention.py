"""Sink attention: plain loops, both evaluation orders, and lists with holes."""

import math

import numpy as np
import pytest

from oracle.attention import sink_attention, sink_attention_tiled
from oracle.formats import round_to


def plain(q, kv, listed, sink, scale):
    out = np.zeros_like(q)
    for t in range(len(q)):
        for h in range(q.shape[1]):
            rows = [kv[i] for i in listed[t] if i >= 0]
            logits = [scale * math.fsum(q[t, h] * row) for row in rows]
            top = max([*logits, sink[h]])
            weights = [math.exp(v - top) for v in logits]
            total = math.fsum([*weights, math.exp(sink[h] - top)])
            for w, row in zip(weights, rows, strict=True):
                out[t, h] += w / total * row
    return out


def random_case(slots, seed=0):
    rng = np.random.default_rng(seed)
    q, kv = rng.normal(0, 1, (3, 2, 8)), rng.normal(0, 1, (20, 8))
    listed = rng.integers(-1, 20, (3, slots))
    return q, kv, listed, rng.normal(0, 1, 2)


@pytest.mark.parametrize("slots", [1, 5, 64, 65, 130])
@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_both_orders_are_the_plain_loops(attend, slots):
    case = random_case(slots)
    np.testing.assert_allclose(attend(*case, scale=0.5), plain(*case, 0.5), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_absent_entries_do_not_count_and_double_ones_do(attend):
    q, kv, _, sink = random_case(1)
    base = attend(q, kv, np.array([[3, 4]] * 3), sink, scale=0.5)
    holes = attend(q, kv, np.array([[-1, 3, -1, 4, -1]] * 3), sink, scale=0.5)
    np.testing.assert_allclose(holes, base, rtol=1e-14)
    twice = attend(q, kv, np.array([[3, 4, 4]] * 3), sink, scale=0.5)
    assert np.abs(twice - base).max() > 1e-3


@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_nothing_listed_gives_zeros(attend):
    q, kv, _, sink = random_case(1)
    for rows in (kv, kv[:0]):
        assert not attend(q, rows, np.full((3, 70), -1), sink, scale=0.5).any()


@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_what_is_not_listed_may_be_nan(attend):
    q, kv, _, sink = random_case(1)
    listed = np.array([[0, -1], [1, 2], [-1, -1]])
    clean = attend(q, kv, listed, sink, scale=0.5)
    kv[3:] = np.nan
    assert attend(q, kv, listed, sink, scale=0.5).tobytes() == clean.tobytes()


def test_a_tile_of_absent_entries_changes_nothing():
    q, kv, _, sink = random_case(1)
    listed = np.array([[5, 6, 7]] * 3)
    padded = np.concatenate([np.full((3, 64), -1), listed, np.full((3, 64), -1)], axis=1)
    got = sink_attention_tiled(q, kv, padded, sink, scale=0.5)
    np.testing.assert_allclose(got, sink_attention(q, kv, listed, sink, scale=0.5), rtol=1e-13)


@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_a_sink_far_above_the_rows_takes_everything(attend):
    q, kv, listed, _ = random_case(4)
    assert not attend(q, kv, listed, np.array([1e4, 1e4]), scale=0.5).any()


def test_weights_are_rounded_for_the_values_only():
    # Two equal rows of weight 1 (the maximum) and e^-0.01; only the second one moves by rounding.
    q, kv = np.array([[[1.0]]]), np.array([[1.0], [0.99]])
    got = sink_attention_tiled(
        q, kv, np.array([[0, 1]]), np.array([-50.0]), scale=1.0,
        rounded=lambda x: round_to(x, "bf16"),
    )  # fmt: skip
    w = math.exp(-0.01)
    held = float(round_to([w], "bf16")[0])
    assert held != w
    assert got[0, 0, 0] == pytest.approx((1 + held * 0.99) / (1 + w + math.exp(-51)), rel=1e-14)
