"""Ordered selection: by hand, against a stable sort, and wherever ties, ends and NaN can hide."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle.topk import top_k, top_visible
from oracle.topk import topk as topk_oracle

Run = Callable[..., SimpleNamespace]

test_contract_topk = contract_tests("topk")
test_speed_topk = speed_tests("topk")


def select(
    run: Run, score: np.ndarray, places: int, visible: list[int] | None = None, offset: int = 0
) -> SimpleNamespace:
    score = np.atleast_2d(np.asarray(score, np.float32))
    shown = np.int32([score.shape[1]] * len(score) if visible is None else visible)
    sizes = {"T": len(score), "N": score.shape[1], "S": places}
    return run("topk", **sizes, score=score, visible=shown, offset=offset)


def plainly(scores: list[float], places: int) -> list[int]:
    """The twin: take the best that is left, the first among equals, until the places are full."""
    left, chosen = list(range(len(scores))), []
    while left and len(chosen) < places:
        best = left[0]
        for i in left[1:]:
            if scores[i] > scores[best]:
                best = i
        chosen.append(best)
        left.remove(best)
    return chosen + [-1] * (places - len(chosen))


def test_five_scores_by_hand(run: Run) -> None:
    scores = [2.0, -1.0, 7.0, 2.0, 0.0]
    assert select(run, scores, 4).ids.tolist() == [[2, 0, 3, 4]]
    assert select(run, scores, 7, offset=100).ids.tolist() == [[102, 100, 103, 104, 101, -1, -1]]
    assert top_k(np.array(scores), 4).tolist() == [2, 0, 3, 4]


def test_oracle_agrees_with_plain_search() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        score = rng.integers(-3, 4, (1, 17)).astype(np.float64)
        shown = np.array([int(rng.integers(0, 18))])
        expected = plainly(score[0, : shown[0]].tolist(), 9)
        assert topk_oracle(score, shown, 0, 9)["ids"][0].tolist() == expected
        assert top_visible(score, shown, 9)[0].tolist() == expected


@pytest.mark.parametrize("places", [1, 2, 31, 64, 512])
@pytest.mark.parametrize("share", [0.0, 0.75, 0.9, 1.0])
def test_every_length_around_the_places_under_every_share_of_ties(
    places: int, share: float, run: Run
) -> None:
    rng = np.random.default_rng(places)
    lengths = {places - 1, places, places + 1, 3 * places // 2, 2 * places - 1, 2 * places}
    for length in sorted(lengths | {2 * places + 1}):
        if not length:
            continue
        score = rng.standard_normal(length).astype(np.float32)
        score[rng.random(length) < share] = 0.25
        order = np.argsort(-score, kind="stable")[:places].tolist()
        assert select(run, score, places).ids[0].tolist() == order + [-1] * (places - len(order))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 2, 49, 50, 51, 2**31 - 1])
def test_only_the_visible_scores_count(length: int, run: Run) -> None:
    score = np.arange(50, dtype=np.float32)  # the hidden ones are the largest
    shown = min(max(length, 0), 50)
    expected = list(range(shown - 1, max(shown - 8, 0) - 1, -1))
    got = select(run, score, 8, [length]).ids[0].tolist()
    assert got == expected + [-1] * (8 - len(expected))


def test_a_visible_minus_infinity_is_chosen_before_nothing(run: Run) -> None:
    score = np.full(9, -np.inf)
    score[4] = 1.0
    assert select(run, score, 4).ids[0].tolist() == [4, 0, 1, 2]
    assert select(run, score, 4, [3]).ids[0].tolist() == [0, 1, 2, -1]


def test_zeros_of_both_signs_are_equal(run: Run) -> None:
    score = [-0.0, 0.0, -0.0, 0.0, -1.0, 1e-45]
    assert select(run, score, 6).ids[0].tolist() == [5, 0, 1, 2, 3, 4]
    assert select(run, score, 3).ids[0].tolist() == [5, 0, 1]


def test_nan_comes_last_and_is_counted_where_it_is_visible(run: Run) -> None:
    nan = np.nan
    got = select(run, [[nan, 1, -np.inf, nan, 2, nan]] * 3, 4, [6, 3, 0])
    assert got.nans.tolist() == [3, 1, 0]
    assert got.ids.tolist() == [[4, 1, 2, 0], [1, 2, 0, -1], [-1] * 4]
    # The count does not depend on whether there is room for all.
    assert select(run, [nan, 1, nan], 1).nans.tolist() == [2]
    assert select(run, [nan, 1, nan], 9).nans.tolist() == [2]


@pytest.mark.parametrize("sign", [1, -1])
def test_neighbouring_floats_are_told_apart(sign: int, run: Run) -> None:
    base = np.float32(1.0).view(np.uint32)
    score = sign * (base + np.arange(3000, dtype=np.uint32)).view(np.float32)
    order = np.arange(3000)[::-1] if sign > 0 else np.arange(3000)
    assert np.array_equal(select(run, score, 40).ids[0], order[:40])


def test_ties_that_span_many_steps_go_to_the_lowest_indices(run: Run) -> None:
    score = np.zeros(20000, np.float32)
    score[::7] = 1.0
    got = select(run, score, 4000).ids[0]
    ones = np.arange(0, 20000, 7)
    zeros = np.flatnonzero(score == 0)[: 4000 - ones.size]
    assert np.array_equal(got, np.concatenate([ones, zeros]))


def test_rows_are_what_they_are_alone(run: Run) -> None:
    rng = np.random.default_rng(4)
    score = rng.integers(0, 30, (5, 700)).astype(np.float32)
    shown = [700, 699, 64, 1, 0]
    together = select(run, score, 64, shown).ids
    for t in range(5):
        assert np.array_equal(select(run, score[t], 64, [shown[t]]).ids[0], together[t])


def test_a_longer_row_changes_nothing_that_is_visible(run: Run) -> None:
    score = np.random.default_rng(5).standard_normal(1500).astype(np.float32)
    long = np.concatenate([score, np.full(4000, 1e9, np.float32)])
    expected = select(run, score, 100).ids
    assert np.array_equal(select(run, long, 100, [1500]).ids, expected)


def test_more_places_than_can_be_sorted_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="sorted in shared memory"):
        select(run, np.zeros(5000, np.float32), 4097)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=300),
    st.integers(1, 70),
    st.integers(-2, 320),
)
def test_ids_are_those_of_a_stable_sort(scores: list[float], places: int, shown: int) -> None:
    score = np.array([scores], np.float32)
    sizes = {"T": 1, "N": len(scores), "S": places}
    named = {"score": score, "visible": np.int32([shown]), "offset": 5}
    got = run_kernel("topk", HostDevice(), **sizes, **named)
    count = min(max(shown, 0), len(scores))
    order = (np.argsort(-score[0, :count], kind="stable")[:places] + 5).tolist()
    assert got.ids[0].tolist() == order + [-1] * (places - len(order))
    assert got.nans.tolist() == [0]
