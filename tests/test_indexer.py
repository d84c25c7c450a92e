"""Indexer scores: by hand, in plain loops, and the mistakes that change what is selected."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testing import contract_tests, speed_tests
from oracle.formats import encode
from oracle.hadamard import sylvester
from oracle.indexer import index_scores, indexer_score

Run = Callable[..., SimpleNamespace]

test_contract_indexer_score = contract_tests("indexer_score")
test_contract_indexer_score_f32 = contract_tests("indexer_score_f32")
test_speed_indexer_score = speed_tests("indexer_score")
test_speed_indexer_score_f32 = speed_tests("indexer_score_f32")

arms = pytest.mark.parametrize("arm", ["", "_f32"])
EVERYTHING = 2**31 - 1


def scores(
    run: Run,
    arm: str,
    q: np.ndarray,
    keys: np.ndarray,
    weights: np.ndarray,
    visible: int | list[int] = EVERYTHING,
    wscale: float = 1.0,
) -> np.ndarray:
    weights = np.asarray(weights, np.float32)
    q, keys = (encode(np.asarray(x, float), "bf16" if arm else "f32") for x in (q, keys))
    if arm:  # whose rows are whole loads: zeros change no sum
        q, keys = (np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 8)]) for x in (q, keys))
    sizes = {"T": len(q), "H": q.shape[1], "K": q.shape[2], "N": len(keys)}
    shown = np.resize(np.asarray(visible), len(q)).astype(np.int32)
    named = {"q": q, "keys": keys, "weights": weights, "visible": shown, "wscale": wscale}
    result: np.ndarray = run(f"indexer_score{arm}", **sizes, **named).score
    return result


def whole_numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small integers: every sum is exact, so both arms and the oracle agree to the byte."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def plainly(q: np.ndarray, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The twin: one number at a time."""
    out = np.zeros((len(q), len(keys)))
    for t in range(len(q)):
        for n in range(len(keys)):
            for h in range(q.shape[1]):
                product = 0.0
                for k in range(q.shape[2]):
                    product += q[t, h, k] * keys[n, k]
                if product > 0:
                    out[t, n] += product * weights[t, h]
    return out


@arms
def test_two_heads_by_hand(arm: str, run: Run) -> None:
    # Key 0: products 1 and -2, so only head 0 counts: 1 * 0.5. Key 1: -1 and 5: 5 * -2 = -10.
    # Key 2: both are negative: 0.
    q = [[[1, 0, 0, 0], [0, 1, 0, 0]]]
    keys = [[1, -2, 0, 0], [-1, 5, 0, 0], [-3, -4, 0, 0]]
    assert scores(run, arm, q, keys, [[0.5, -2]]).tolist() == [[0.5, -10, 0]]
    assert index_scores(*(np.array(x, float) for x in (q, keys, [[0.5, -2]]))).tolist() == [
        [0.5, -10, 0]
    ]


def test_oracle_agrees_with_plain_loops() -> None:
    q, keys, weights = whole_numbers(3, 5, 7), whole_numbers(11, 7, seed=1), whole_numbers(3, 5)
    assert np.array_equal(index_scores(q, keys, weights), plainly(q, keys, weights))


@arms
def test_whole_numbers_come_out_exactly(arm: str, run: Run) -> None:
    q, keys, weights = whole_numbers(3, 70, 72), whole_numbers(50, 72, seed=1), whole_numbers(3, 70)
    got = scores(run, arm, q, keys, weights, wscale=0.25)
    assert np.array_equal(got, plainly(q, keys, weights) * 0.25)


@arms
def test_the_clamp_comes_before_the_weight(arm: str, run: Run) -> None:
    # One head with a positive product and a negative weight: the score is negative, not zero.
    q, keys = np.ones((1, 1, 4)), np.ones((1, 4))
    assert scores(run, arm, q, keys, [[-1]])[0, 0] == -4
    assert scores(run, arm, q, -keys, [[-1]])[0, 0] == 0
    # Heads do not cancel before the clamp: 4 and -4 give 4, not 0.
    both = np.concatenate([q, -q], axis=1)
    assert scores(run, arm, both, keys, [[1, 1]])[0, 0] == 4


@arms
@pytest.mark.parametrize("length", [-1, 0, 1, 2, 15, 16, 17, 63, 64, 65, 99, 100, 101])
def test_blocks_from_the_count_on_are_hidden(length: int, arm: str, run: Run) -> None:
    q, keys, weights = whole_numbers(1, 2, 4), whole_numbers(100, 4, seed=1), whole_numbers(1, 2)
    got = scores(run, arm, q, keys, weights, visible=length)[0]
    shown = min(max(length, 0), 100)
    assert np.array_equal(got[:shown], plainly(q, keys, weights)[0, :shown])
    assert (got[shown:] == -np.inf).all()


@arms
def test_a_block_is_scored_from_its_own_last_position_on(arm: str, run: Run) -> None:
    positions = np.arange(33)
    q, keys = np.ones((33, 1, 4)), np.ones((8, 4))
    visible = (positions + 1) // 4
    got = scores(run, arm, q, keys, np.ones((33, 1)), visible=visible.tolist())
    for position in positions:
        complete = [n for n in range(8) if 4 * n + 3 <= position]
        assert np.flatnonzero(np.isfinite(got[position])).tolist() == complete


@arms
def test_a_score_does_not_depend_on_how_many_there_are(arm: str, run: Run) -> None:
    rng = np.random.default_rng(5)
    q, weights = rng.standard_normal((40, 9, 20)), rng.standard_normal((40, 9))
    keys = rng.standard_normal((700, 20))
    # 40 x 700 takes 8 keys a warp, one query of 700 takes 2, and 3 keys fill no tile.
    every = scores(run, arm, q, keys, weights)
    assert np.array_equal(scores(run, arm, q[7:8], keys, weights[7:8])[0], every[7])
    assert np.array_equal(scores(run, arm, q, keys[:300], weights), every[:, :300])
    assert np.array_equal(
        scores(run, arm, q[39:], keys[500:503], weights[39:])[0], every[39, 500:503]
    )


@arms
def test_a_hidden_key_has_no_influence(arm: str, run: Run) -> None:
    q, keys, weights = whole_numbers(1, 2, 4), whole_numbers(20, 4, seed=1), whole_numbers(1, 2)
    before = scores(run, arm, q, keys, weights, visible=7)
    keys[7:] = np.nan
    assert np.array_equal(scores(run, arm, q, keys, weights, visible=7), before)


@arms
def test_a_product_that_is_no_number_is_not_clamped_away(arm: str, run: Run) -> None:
    q, keys = np.ones((1, 2, 4)), np.ones((3, 4))
    keys[1, 2] = np.nan
    got = scores(run, arm, q, keys, np.ones((1, 2)))[0]
    assert np.isnan(got[1]) and got[[0, 2]].tolist() == [8, 8]


def test_scores_survive_a_rotation_of_both_sides_and_not_of_one() -> None:
    q, keys, weights = whole_numbers(2, 3, 8), whole_numbers(9, 8, seed=1), np.ones((2, 3))
    turn = sylvester(8) / 8**0.5
    plain = index_scores(q, keys, weights)
    assert np.allclose(index_scores(q @ turn, keys @ turn, weights), plain, atol=1e-12)
    assert not np.allclose(index_scores(q @ turn, keys, weights), plain, atol=1.0)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6))
def test_scores_are_linear_in_the_weights_and_grow_with_positive_ones(
    seed: int, heads: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    q, keys = rng.standard_normal((1, heads, 4)), rng.standard_normal((count, 4))
    a, b = rng.standard_normal((2, 1, heads))
    shown = np.array([count])
    joint = indexer_score(q, keys, a + b, shown, 1.0).value
    parts = [indexer_score(q, keys, w, shown, 1.0).value for w in (a, b)]
    assert np.allclose(joint, parts[0] + parts[1], rtol=0, atol=1e-12)
    assert (indexer_score(q, keys, np.abs(a), shown, 1.0).value >= 0).all()
