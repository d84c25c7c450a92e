"""The candidate walk: a chain, with every term, greedy and drawn (T1-T3, T5-T7, refusals 1-6)."""

import math

import numpy as np
import pytest

from dsv4.drafters.selector import Codebooks, codebook_row, walk_greedy, walk_sampled
from tests.speculation.refusing import refuses

CANDIDATES = np.array([[1, 2], [3, 4]])
ONES, FLAT = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    """Upper halves of float32 numbers that fit."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def books() -> Codebooks:
    before, after = np.zeros((8, 2)), np.zeros((8, 2))
    before[0], before[1], before[2] = (1, 0), (0, 1), (1, 0)
    after[1], after[2], after[3], after[4] = (2, 0), (0, 5), (0, 3), (10, 0)
    return Codebooks(bf16(before), bf16(after))


def greedy(unary: np.ndarray = FLAT, hidden: np.ndarray = ONES) -> list[int]:
    return walk_greedy(books(), np.asarray(unary), CANDIDATES, np.asarray(hidden), 0).tolist()


def drawn(temp: float, *u: float):  # type: ignore[no-untyped-def]
    return walk_sampled(books(), FLAT, CANDIDATES, ONES, 0, temp, u)


def test_the_walk_is_a_chain_and_not_a_maximum_of_each_slot() -> None:
    # Slot 0: 2 against 0. After token 1 the second lane counts: 3 against 0, though 4 is larger.
    assert greedy() == [1, 3]


def test_the_unary_term_counts() -> None:
    assert greedy(np.array([[0, 10], [0, 0]], np.float32)) == [2, 4]


def test_the_hidden_gate_counts() -> None:
    hidden = np.array([[0, 1], [1, 1]], np.float32)
    assert greedy(np.array([[0, 1], [0, 0]], np.float32), hidden) == [2, 4]


def test_a_cold_draw_is_the_greedy_walk() -> None:
    path = drawn(1e-6, 0.5, 0.5)
    assert path.tokens.tolist() == [1, 3]
    assert (path.q_chosen > 0.999).all()
    assert path.q_rows.size == 4


def test_what_is_recorded_is_what_was_drawn_from() -> None:
    first = float(drawn(2.0, 0.5, 0.5).q_rows[0, 0])
    assert first == pytest.approx(math.e / (math.e + 1), abs=1e-4)
    for u, token, column in ((first - 0.01, 1, 0), (first + 0.01, 2, 1)):
        path = drawn(2.0, u, 0.5)
        assert path.tokens[0] == token
        assert path.q_rows.sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
        assert path.q_chosen[0] == path.q_rows[0, column]


def test_the_chain_follows_the_drawn_token() -> None:
    assert drawn(2.0, 0.99, 0.01).tokens.tolist() == [2, 4]


def test_nothing_below_a_uniform_of_one_draws_the_last_of_the_most_probable() -> None:
    book = Codebooks(bf16(np.zeros((4, 2))), bf16(np.zeros((4, 2))))
    one = np.zeros((1, 3), np.float32)
    path = walk_sampled(book, one, np.array([[1, 2, 3]]), ONES[:1], 0, 1.0, [1.0])
    assert path.tokens.tolist() == [3]


def test_a_row_of_nan_scores_keeps_the_first_candidate() -> None:
    assert greedy(np.full((2, 2), np.nan, np.float32)) == [1, 3]


def test_codebook_rows_are_widened_exactly() -> None:
    assert codebook_row(np.array([[0x3F80, 0xC000]], np.uint16), 0).tolist() == [1.0, -2.0]


def test_arrays_of_other_lengths_are_refused() -> None:
    with refuses("walk-unary-length"):
        walk_greedy(books(), FLAT[:1], CANDIDATES, ONES, 0)
    with refuses("walk-ids-length"):
        walk_greedy(books(), FLAT, CANDIDATES.reshape(-1)[:3], ONES, 0)
    with refuses("walk-hidden-length"):
        walk_greedy(books(), FLAT, CANDIDATES, np.ones((2, 3), np.float32), 0)


def test_ids_outside_the_codebooks_are_refused() -> None:
    with refuses("walk-predecessor-range"):
        walk_greedy(books(), FLAT, CANDIDATES, ONES, 8)
    with refuses("walk-candidate-range"):
        walk_greedy(books(), FLAT, np.array([[1, 2], [3, 8]]), ONES, 0)


@pytest.mark.parametrize("temp", [0.0, -1.0, math.nan])
def test_a_draw_needs_a_temperature_above_zero(temp: float) -> None:
    with refuses("walk-temperature"):
        drawn(temp, 0.5, 0.5)
