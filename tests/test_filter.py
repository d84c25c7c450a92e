"""Filters and draws: by hand, with the words of the streams, and as histograms."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.speculation.philox import gumbel_words, residual_u01
from dsv4.speculation.sampling import SpecSampling, filter_stats, filtered
from lab.testing import contract_tests, speed_tests
from oracle.filter import RESIDUAL, uniforms, words

Run = Callable[..., SimpleNamespace]

KERNELS = ["stats", "gather", "gumbel", "residual_dense", "residual_sparse"]
test_stats_contract = contract_tests("filter_stats")
test_gather_contract = contract_tests("filter_gather")
test_gumbel_contract = contract_tests("filter_gumbel")
test_dense_contract = contract_tests("filter_residual_dense")
test_sparse_contract = contract_tests("filter_residual_sparse")
test_stats_speed = speed_tests("filter_stats")
test_gather_speed = speed_tests("filter_gather")
test_gumbel_speed = speed_tests("filter_gumbel")
test_dense_speed = speed_tests("filter_residual_dense")
test_sparse_speed = speed_tests("filter_residual_sparse")

OFF: dict[str, Any] = dict(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROBABILITIES = np.array([0.4, 0.3, 0.2, 0.1])
ROW = np.log(PROBABILITIES).astype(np.float32)[None]


def stats(run: Run, row: np.ndarray, **filters: Any) -> dict[str, Any]:
    got = run("filter_stats", T=len(row), V=row.shape[1], x=row, **{**OFF, **filters})
    return {n: getattr(got, n).astype(np.float32) for n in ("mx", "th", "z")}


def kept(run: Run, **filters: Any) -> list[int]:
    rows = np.repeat(ROW, 4, axis=0)
    found = stats(run, rows, **filters)
    at = np.arange(4, dtype=np.int32)
    p = run("filter_gather", T=4, V=4, x=rows, ids=at, temp=1.0, **found).p
    return np.flatnonzero(p).tolist()


def test_each_filter_keeps_its_set(run: Run) -> None:
    assert kept(run, top_k=2) == [0, 1]
    assert kept(run, top_p=0.65) == [0, 1]
    assert kept(run, top_p=0.75) == [0, 1, 2]
    assert kept(run, min_p=0.45) == [0, 1, 2]
    assert kept(run, top_k=2, top_p=0.95) == [0, 1]
    assert kept(run) == [0, 1, 2, 3]


def test_the_host_filters_agree(run: Run) -> None:
    row = np.random.default_rng(0).standard_normal((1, 200)).astype(np.float32)
    for filters in (dict(top_k=20), dict(top_p=0.9), dict(top_k=30, top_p=0.8, min_p=0.05)):
        found = stats(run, row, **filters)
        exact = filter_stats(row[0], SpecSampling(1.0, **filters))  # type: ignore[arg-type]
        assert found["th"][0] == pytest.approx(exact[1], abs=2.0**-22)
        assert found["z"][0] == pytest.approx(exact[2], rel=1e-6)


def test_words_of_the_device_are_those_of_the_host() -> None:
    tokens = words(42, np.arange(2), 0).reshape(-1)
    assert tokens.tolist() == gumbel_words(42, 0, 8).tolist()
    assert float(uniforms(words(42, RESIDUAL, 5)[:, 0])[0]) == residual_u01(42, 5)


def test_draws_follow_the_filtered_row(run: Run) -> None:
    rows = np.repeat(ROW, 4000, axis=0)
    found = stats(run, rows, top_k=3)
    got = run("filter_gumbel", T=4000, V=4, x=rows, temp=1.0, seed=9, event=0, **found).ids
    exact = filter_stats(ROW[0], SpecSampling(1.0, top_k=3))
    share = np.bincount(got, minlength=4) / 4000
    assert np.abs(share - filtered(ROW[0], exact, 1.0)).sum() / 2 < 0.02
    assert share[3] == 0


def test_residual_draws_follow_the_excess(run: Run) -> None:
    rows, q = np.repeat(ROW, 3000, axis=0), np.full((3000, 4), np.log(0.25), np.float32)
    p_stats = stats(run, rows)
    q_stats = {f"q_{n}": v for n, v in stats(run, q).items()}
    draw = dict(T=3000, V=4, x=rows, temp=1.0, seed=5, event=0, **p_stats)
    dense = run("filter_residual_dense", **draw, q=q, **q_stats).ids
    # Excesses 0.15 and 0.05: three quarters and a quarter.
    assert np.abs(np.bincount(dense, minlength=4) / 3000 - [0.75, 0.25, 0, 0]).max() < 0.03
    few, given = np.array([[0, 0, 1]] * 3000, np.int32), np.float32([[0.1, 0.2, 0.3]] * 3000)
    sparse = run("filter_residual_sparse", **draw, K=3, candidates=few, q=given).ids
    # What is left of token 0 is 0.1, of the last two 0.2 and 0.1; token 1 has nothing.
    assert np.abs(np.bincount(sparse, minlength=4) / 3000 - [0.25, 0, 0.5, 0.25]).max() < 0.03


def test_without_a_residual_the_largest_logit_is_taken(run: Run) -> None:
    found = stats(run, ROW)
    q_stats = {f"q_{n}": v for n, v in found.items()}
    got = run(
        "filter_residual_dense",
        T=1,
        V=4,
        x=ROW,
        q=ROW,
        temp=1.0,
        seed=5,
        event=0,
        **found,
        **q_stats,
    )
    assert got.ids.tolist() == [0]


def test_statistics_of_another_row_are_told_by_an_impossible_token(run: Run) -> None:
    got = run("filter_gumbel", T=1, V=4, x=ROW, temp=1.0, seed=5, event=0, mx=90.0, th=0.5, z=1.0)
    assert got.ids.tolist() == [-1]


def test_a_temperature_of_zero_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="argmax instead"):
        run("filter_stats", T=1, V=4, x=ROW, **{**OFF, "temp": 0.0})
