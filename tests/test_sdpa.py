"""Grouped-query attention: by hand, across its three ways to walk, and what must not matter."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("sdpa_full")
test_scan_contract = contract_tests("sdpa_scan")
test_clip_contract = contract_tests("sdpa_clip")
test_speed = speed_tests("sdpa_full")
test_scan_speed = speed_tests("sdpa_scan")
test_clip_speed = speed_tests("sdpa_clip")


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_two_keys_by_hand(run: Run) -> None:
    # Scores 0 and ln 3: weights a quarter and three quarters.
    k = np.zeros((2, 1, 4), np.float32)
    k[1, 0, 0] = np.log(3.0)
    q = np.array([[[1, 0, 0, 0]]], np.float32)
    v = np.array([[[4, 0, 0, 0]], [[8, 4, 0, 0]]], np.float32)
    sizes = dict(T=1, H=1, N=2, G=1, K=4)
    got = run("sdpa_full", **sizes, q=q, k=k, v=v, last=ints(2), scale=1.0).y
    assert got[0, 0] == pytest.approx([7, 3, 0, 0], rel=1e-6)


@pytest.mark.parametrize("window", [1, 8, 24, 130, 10_000])
def test_walking_all_keys_and_walking_the_window_give_the_same_bytes(window: int, run: Run) -> None:
    last = ints(288, 290, 296)
    content = dict(
        T=3,
        H=4,
        N=296,
        G=2,
        K=16,
        scale=0.25,
        first=(last - window).astype(np.int32),
        last=last,
        q=normal(3, 4, 16, seed=0),
        k=normal(296, 2, 16, seed=1),
        v=normal(296, 2, 16, seed=2),
    )
    assert run("sdpa_scan", **content).y.tobytes() == run("sdpa_clip", **content).y.tobytes()


def test_a_window_over_everything_is_full_attention_byte_for_byte(run: Run) -> None:
    content = dict(
        T=2,
        H=2,
        N=200,
        G=1,
        K=8,
        scale=0.3,
        last=ints(150, 200),
        q=normal(2, 2, 8, seed=0),
        k=normal(200, 1, 8, seed=1),
        v=normal(200, 1, 8, seed=2),
    )
    full = run("sdpa_full", **content).y
    assert run("sdpa_clip", **content, first=ints(-5, 0)).y.tobytes() == full.tobytes()


def test_keys_behind_the_range_are_never_read(run: Run) -> None:
    k, v = normal(140, 1, 8, seed=1), normal(140, 1, 8, seed=2)
    content = dict(T=1, H=2, N=140, G=1, K=8, scale=0.3, last=ints(131), q=normal(1, 2, 8, seed=0))
    once = run("sdpa_full", **content, k=k, v=v).y
    k[131:], v[131:] = np.nan, np.nan
    assert run("sdpa_full", **content, k=k, v=v).y.tobytes() == once.tobytes()


def test_a_row_gives_the_same_bytes_alone_and_among_others(run: Run) -> None:
    q, last = normal(4, 2, 8, seed=0), ints(100, 137, 140, 2)
    kv = dict(
        N=140, G=1, K=8, H=2, scale=0.3, k=normal(140, 1, 8, seed=1), v=normal(140, 1, 8, seed=2)
    )
    together = run("sdpa_full", T=4, q=q, last=last, **kv).y
    for t in range(4):
        alone = run("sdpa_full", T=1, q=q[t : t + 1], last=last[t : t + 1], **kv).y
        assert alone[0].tobytes() == together[t].tobytes()


def test_a_row_without_keys_gives_zeros(run: Run) -> None:
    got = run("sdpa_full", T=2, H=1, N=3, G=1, K=4, last=ints(0, -2), scale=1.0).y
    assert not got.any()


def test_query_heads_that_key_heads_do_not_divide_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="equally many"):
        run("sdpa_full", T=1, H=3, N=2, G=2, K=4, last=ints(2), scale=1.0)
