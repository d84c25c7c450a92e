"""Draws by position: one definition, of the row, the seed and the position alone."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.speculation.draws import draw_at, position_uniform
from dsv4.speculation.refusals import DrafterRefusal
from dsv4.speculation.sampling import SpecSampling, filter_stats, filtered


def test_uniform_numbers_are_of_a_position_and_a_seed() -> None:
    numbers = [position_uniform(7, p) for p in range(4000)]
    assert numbers == [position_uniform(7, p) for p in range(4000)]
    assert len(set(numbers)) == 4000 and all(0.0 <= u < 1.0 for u in numbers)
    assert position_uniform(8, 0) != numbers[0]
    assert abs(np.mean(numbers) - 0.5) < 0.02 and abs(np.var(numbers) - 1 / 12) < 0.005
    # 53 bits: no number is a multiple of a coarser step only.
    assert any((u * 2.0**53) % 2 for u in numbers)


@pytest.mark.parametrize(
    "sampling",
    [
        SpecSampling(1.0, 3),
        SpecSampling(0.5, 3, top_k=3),
        SpecSampling(2.0, 3, top_p=0.7),
        SpecSampling(1.0, 3, min_p=0.2),
        SpecSampling(1.0, 3, 4, 0.9, 0.05),
    ],
    ids=str,
)
def test_draws_have_the_filtered_distribution(sampling: SpecSampling) -> None:
    row = np.array([0.3, 2.0, -1.0, 1.5, 0.0, 1.9], np.float32)
    want = filtered(row, filter_stats(row, sampling), sampling.temp)
    count = 6000
    drawn = np.bincount([draw_at(row, p, sampling) for p in range(count)], minlength=6) / count
    assert not drawn[want == 0].any()
    assert np.abs(drawn - want).max() < 4 * np.sqrt(0.25 / count)


def test_a_cold_draw_is_the_first_largest_token() -> None:
    row = np.array([1.0, 5.0, 4.9, 0.0], np.float32)
    assert {draw_at(row, p, SpecSampling(1e-3, 1)) for p in range(50)} == {1}
    assert {draw_at(row, p, SpecSampling(1.0, 1, top_k=1)) for p in range(50)} == {1}


def test_ties_at_a_boundary_all_stay_and_the_lower_token_stands_first() -> None:
    row = np.array([2.0, 3.0, 3.0, 1.0], np.float32)
    drawn = {p: draw_at(row, p, SpecSampling(1.0, 1, top_k=1)) for p in range(200)}
    assert set(drawn.values()) == {1, 2}
    for position, token in drawn.items():
        assert token == (1 if position_uniform(1, position) < 0.5 else 2)


def test_a_draw_does_not_depend_on_what_was_drawn_before() -> None:
    rows = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    sampling = SpecSampling(0.9, 5, top_p=0.9)
    forwards = [draw_at(rows[i], i, sampling) for i in range(8)]
    backwards = [draw_at(rows[i], i, sampling) for i in reversed(range(8))][::-1]
    assert forwards == backwards


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_refused(value: float) -> None:
    row = np.array([0.0, value, 1.0], np.float32)
    with pytest.raises(DrafterRefusal, match="token 1"):
        draw_at(row, 4, SpecSampling(1.0))


def test_penalties_and_no_temperature_are_refused() -> None:
    row = np.zeros(3, np.float32)
    with pytest.raises(DrafterRefusal, match="penalt"):
        draw_at(row, 0, SpecSampling(1.0, penalty_repeat=1.1))
    with pytest.raises(DrafterRefusal, match="temperature"):
        draw_at(row, 0, SpecSampling(0.0))
