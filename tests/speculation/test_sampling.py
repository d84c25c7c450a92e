"""Filters and draws: by hand, as sets, and as histograms."""

import math

import numpy as np
import pytest

from dsv4.speculation.sampling import (
    Counters,
    HostSampler,
    SpecSampling,
    filter_stats,
    filtered,
    gumbel_draw,
    residual_draw,
)
from tests.speculation.refusing import refuses

ROW = np.log(np.array([0.4, 0.3, 0.2, 0.1]))


def kept(**filters: float) -> list[int]:
    sampling = SpecSampling(1.0, **filters)  # type: ignore[arg-type]
    return np.flatnonzero(filtered(ROW, filter_stats(ROW, sampling), 1.0)).tolist()


def test_without_filters_everything_stays() -> None:
    mx, th, z = filter_stats(ROW, SpecSampling(1.0))
    assert (mx, th) == (ROW[0], 0.0)
    assert z == pytest.approx(1 / 0.4)


def test_each_filter_keeps_its_set() -> None:
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.7) == [0, 1]
    assert kept(top_p=0.71) == [0, 1, 2]
    assert kept(min_p=0.5) == [0, 1, 2]  # relative to the most probable token
    assert kept(top_k=99) == [0, 1, 2, 3]


def test_several_filters_keep_the_intersection_on_the_full_distribution() -> None:
    # After top_k alone 0.4 of 0.7 would reach 0.55; of everything it takes two tokens.
    assert kept(top_k=2, top_p=0.55) == [0, 1]
    assert kept(top_k=3, min_p=0.7) == [0, 1]


def test_ties_with_the_boundary_all_stay() -> None:
    row = np.array([1.0, 0.0, 0.0, -1.0])
    stats = filter_stats(row, SpecSampling(1.0, top_k=2))
    assert np.flatnonzero(filtered(row, stats, 1.0)).tolist() == [0, 1, 2]


def test_temperature_sharpens_before_the_filters() -> None:
    stats = filter_stats(ROW, SpecSampling(0.5))
    assert filtered(ROW, stats, 0.5)[0] == pytest.approx(0.16 / (0.16 + 0.09 + 0.04 + 0.01))


def test_draws_follow_the_filtered_distribution() -> None:
    sampling = SpecSampling(1.0, seed=42, top_k=3)
    stats = filter_stats(ROW, sampling)
    n = 20_000
    counts = np.bincount([gumbel_draw(ROW, stats, sampling, e) for e in range(n)], minlength=4)
    assert counts[3] == 0
    assert np.abs(counts / n - filtered(ROW, stats, 1.0)).sum() / 2 < 0.01


def test_residual_draws_follow_the_excess() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.2])
    grid = (np.arange(1000) + 0.5) / 1000
    assert {residual_draw(p, q, u, -1) for u in grid} == {0}


def test_probabilities_given_twice_for_a_token_add() -> None:
    sampler, sampling = HostSampler(), SpecSampling(1.0, seed=1)
    stats = sampler.stats(ROW[None], sampling)
    for event in range(50):
        x = sampler.residual_sparse(
            ROW[None], stats, np.array([0, 0]), np.array([0.2, 0.2]), sampling, event
        )
        assert x != 0


def test_statistics_of_another_row_are_refused_and_never_give_token_zero() -> None:
    with refuses("internal"):
        filtered(ROW, np.array([0.0, 1.0, 0.0]), 1.0)


def test_the_streams_count_separately_and_wrap() -> None:
    counters = Counters(0xFFFFFFFF, 5)
    assert (counters.events(2), counters.uniforms(3)) == (0xFFFFFFFF, 5)
    assert (counters.sctr, counters.uctr) == (1, 8)


@pytest.mark.parametrize("temp", [0.0, -1.0, math.nan])
def test_a_draw_needs_a_temperature(temp: float) -> None:
    with refuses("temperature"):
        SpecSampling(temp).checked()


def test_filters_out_of_range_are_refused() -> None:
    for filters in (dict(top_k=-1), dict(top_p=0.0), dict(min_p=1.5)):
        with refuses("value"):
            SpecSampling(1.0, **filters).checked()  # type: ignore[arg-type]
