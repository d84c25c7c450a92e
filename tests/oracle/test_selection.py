"""What is chosen: top k with its tie rule, experts, index scores, and lists of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import index_lists
from oracle.indexer import index_scores
from oracle.router import expert_scores, routing_weights, select_experts
from oracle.topk import top_k, top_visible

FEW = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, -np.inf])


def plain_top(scores, k):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@settings(deadline=None)
@given(st.lists(FEW, min_size=1, max_size=30), st.integers(0, 30))
def test_top_k_is_a_sort_by_value_then_index(scores, k):
    k = min(k, len(scores))
    assert top_k(np.array(scores), k).tolist() == plain_top(scores, k)


@settings(deadline=None)
@given(st.lists(FEW, min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 20))
def test_scores_beyond_the_visible_ones_are_never_chosen(scores, visible, k):
    k = min(k, len(scores))
    visible = min(visible, len(scores))
    got = top_visible(np.array([scores]), [visible], k)[0].tolist()
    want = plain_top(scores[:visible], k)
    assert [j for j in got if j >= 0] == [j for j in want if scores[j] > -np.inf] + [
        j for j in want if scores[j] == -np.inf
    ]
    assert got[len(want) :] == [-1] * (k - len(want))


def test_nan_and_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="1 scores are NaN"):
        top_k(np.array([0.0, np.nan]), 1)
    for k in (-1, 3):
        with pytest.raises(ValueError, match="ask for 0 to 2"):
            top_k(np.zeros(2), k)
    with pytest.raises(ValueError, match="NaN"):
        select_experts(np.full((1, 4), np.nan), np.zeros(4), 2)


def test_a_visible_minus_infinity_is_chosen_before_what_is_not_visible():
    scores = np.array([[-np.inf, 5.0, 7.0]])
    assert top_visible(scores, [1], 2).tolist() == [[0, -1]]


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=4, max_size=12), st.integers(1, 4))
def test_routing_weights_sum_to_the_scale(logits, active):
    scores = expert_scores(np.array([logits]))
    assert (scores > 0).all()
    chosen = select_experts(scores, np.zeros(len(logits)), active)
    weights = routing_weights(scores, chosen, scale=1.5)
    assert weights.sum() == pytest.approx(1.5)
    assert sorted(scores[0][chosen[0]])[::-1] == sorted(scores[0])[::-1][:active]


def test_expert_scores_join_at_the_threshold():
    below, above = expert_scores(np.array([20.0, np.nextafter(20.0, 21)]))
    assert above == pytest.approx(below, rel=1e-9)
    assert expert_scores(np.array([-700.0]))[0] > 0
    assert expert_scores(np.array([800.0]))[0] == pytest.approx(800**0.5)


def test_the_clamp_comes_before_the_signed_head_weight():
    q, keys = np.array([[[1.0], [-1.0]]]), np.array([[2.0], [-3.0]])
    scores = index_scores(q, keys, np.array([[-1.0, 10.0]]))
    assert scores.tolist() == [[-2.0, 30.0]]


def test_scores_are_rounded_at_three_places():
    seen = []

    def spy(x):
        seen.append(x.shape)
        return np.round(x)

    q, keys = np.array([[[0.6], [0.6]]]), np.array([[1.0]])
    assert index_scores(q, keys, np.array([[1.4, 1.4]]), rounded=spy).tolist() == [[2.0]]
    assert seen == [(1, 2, 1), (1, 2, 1), (1, 1)]


@settings(deadline=None)
@given(st.integers(0, 80), st.integers(1, 20), st.sampled_from([0, 2, 4, 8, 128]))
def test_sets_are_what_the_definition_says(p, window, ratio):
    listed = index_lists.window_list([p], window, window)[0]
    assert listed[listed >= 0].tolist() == list(range(max(0, p - window + 1), p + 1))
    assert (listed[p + 1 :] == -1).all() if p < window else (listed >= 0).all()
    complete = [j for j in range(100) if ratio and (j + 1) * ratio <= p + 1]
    assert index_lists.visible_blocks([p], ratio)[0] == len(complete)
    blocks = index_lists.block_list([p], ratio, len(complete) + 2)[0]
    assert blocks.tolist() == [*complete, -1, -1]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 8), st.integers(1, 12))
def test_a_round_sees_the_ring_as_it_was_and_its_own_rows(first, rows, window):
    # Brute force: write positions one by one into a ring and remember who stands where.
    ring = {p % window: p for p in range(first)}
    listed = index_lists.window_list(np.arange(first, first + rows), window, window)
    places = index_lists.redirect(listed, first, window, 1000)
    for t in range(rows):
        for position, place in zip(listed[t], places[t], strict=True):
            if position < 0:
                assert place == -1
            elif place >= 1000:
                assert place - 1000 + first == position <= first + t
            else:
                assert ring[place] == position < first


@pytest.mark.parametrize("p", [0, 3, 14, 15, 16, 40])
def test_draft_rows_see_valid_slots_only(p):
    listed = index_lists.draft_list(p, 16, 4)
    assert listed[:-4].tolist() == list(range(min(16, p + 1)))
    assert listed[-4:].tolist() == [16, 17, 18, 19]
