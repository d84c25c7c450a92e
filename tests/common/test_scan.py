"""Counts in thread order, and many warp sums at once, on every path of the host backend."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime.host import build

SOURCE = Path(__file__).with_name("scan.cu")
modes = pytest.mark.parametrize("mode", ["run", "shuffle", "check"])


@modes
@pytest.mark.parametrize("threads", [32, 96, 320, 1024])
def test_every_thread_gets_the_sum_before_it(threads: int, mode: str) -> None:
    value = np.random.default_rng(threads).integers(-3, 9, threads).astype(np.int32)
    before, total = np.empty_like(value), np.empty(1, np.int32)
    module = build(SOURCE, defines={}, mode=mode)
    module.launch(
        "count_before", grid=(1, 1, 1), block=(threads, 1, 1), args=[value, before, total]
    )
    assert total[0] == value.sum()
    assert np.array_equal(before, np.cumsum(value) - value)


@modes
@pytest.mark.parametrize("count", [1, 2, 8, 16, 32])
def test_many_sums_have_the_bits_of_single_ones(count: int, mode: str) -> None:
    rng = np.random.default_rng(count)
    x = (rng.standard_normal((64, count)) * 10.0 ** rng.integers(-3, 4, (64, count))).astype("f4")
    together, single = np.full(64, np.nan, "f4"), np.full(64, np.inf, "f4")
    module = build(SOURCE, defines={}, mode=mode)
    module.launch(f"sums_{count}", grid=(1, 1, 1), block=(64, 1, 1), args=[x, together, single])
    assert np.array_equal(together.view("u4"), single.view("u4"))
    exact = x.astype(np.float64).reshape(2, 32, count).sum(axis=1)
    lanes = np.arange(32) // (32 // count)
    assert np.allclose(together.reshape(2, 32), exact[:, lanes], rtol=1e-4, atol=1e-3)
