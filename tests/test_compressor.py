"""The compressor: known pools, plain loops, and blocks cut from rows in every way."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.compressor import compressor_pool, compressor_pool_at, pool_blocks
from oracle.formats import spacing

Run = Callable[..., SimpleNamespace]

test_contract_compressor_pool = contract_tests("compressor_pool")
test_contract_compressor_pool_at = contract_tests("compressor_pool_at")
test_speed_compressor_pool = speed_tests("compressor_pool")
test_speed_compressor_pool_at = speed_tests("compressor_pool_at")

NO_WRAP = 2**31 - 1

# C = 4, one channel: tokens s = 1 .. 8 with a = (s, 10 s), the scores z and ape below. By hand,
# with overlap, block 0 pools 10, 20, 30, 40 under the softmax of z[0..3][1] + ape[.][1]:
# (-0.3, 0.3, 0.8, 0.3) -> 27.385; block 1 joins 1 .. 4 under z[0..3][0] + ape[.][0] to 50 .. 80.
A = np.array([[s, 10 * s] for s in range(1, 9)], np.float32)
Z = np.float32(
    [(0.1, 0.2), (0.3, 0.1), (0, 0.5), (0.2, 0.2), (1, 0.4), (0.5, 0.3), (0.2, 0.9), (0.6, 0.1)]
)
APE = np.float32([(0.5, -0.5), (0.1, 0.2), (0, 0.3), (-0.2, 0.1)])
OVERLAPPING, PLAIN = (27.385075242, 39.172412279), (2.221658586, 5.969320635)


def pool(
    run: Run, kv: np.ndarray, score: np.ndarray, ape: np.ndarray, blocks: int, **named: int
) -> np.ndarray:
    named = {"first": 0, "previous": 0, "ring": NO_WRAP, "overlap": 0, **named}
    sizes = {"B": blocks, "S": len(kv), "C": len(ape)}
    sizes["K"] = kv.shape[1] // (1 + named["overlap"])
    result: np.ndarray = run("compressor_pool", kv=kv, score=score, ape=ape, **sizes, **named).y
    return result


def rows(count: int, width: int, ratio: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Raw rows and ape."""
    rng = np.random.default_rng(seed)
    shapes = ((count, width), (count, width), (ratio, width))
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


def plainly(values: list[float], logits: list[float]) -> float:
    """The twin: one channel of one block."""
    weights = [0.0 if x == -math.inf else math.exp(x) for x in logits]
    if not sum(weights):
        return 0.0
    return sum(w * v for w, v in zip(weights, values, strict=True) if w) / sum(weights)


def test_known_blocks_with_overlap(run: Run) -> None:
    expected = pool_blocks(*(x.astype(np.float64) for x in (A, Z, APE)), overlap=True)[:, 0]
    assert np.abs(expected - OVERLAPPING).max() < 1e-6  # Z and APE are float32 here
    got = pool(run, A, Z, APE, 2, overlap=1)[:, 0]
    assert (np.abs(got - expected) <= spacing(expected, "f32")).all()


def test_known_blocks_without_overlap(run: Run) -> None:
    one = [np.ascontiguousarray(x[:, :1]) for x in (A, Z, APE)]
    expected = pool_blocks(*(x.astype(np.float64) for x in one), overlap=False)[:, 0]
    assert np.abs(expected - PLAIN).max() < 1e-6
    got = pool(run, *one, 2)[:, 0]
    assert (np.abs(got - expected) <= spacing(expected, "f32")).all()


@pytest.mark.parametrize("overlap", [0, 1])
def test_oracle_agrees_with_plain_loops(overlap: int) -> None:
    kv, score, ape = (x.astype(np.float64) for x in rows(13, 6, 3))
    score[2] = -np.inf
    half = 3 if overlap else 0
    got = compressor_pool(kv, score, ape, 0, 13, 0, overlap, 4).value
    for b in range(4):
        for k in range(6 - half):
            pairs = [
                (kv[3 * b + i, half + k], score[3 * b + i, half + k] + ape[i, half + k])
                for i in range(3)
            ]
            if overlap and b:
                pairs += [
                    (kv[3 * b - 3 + i, k], score[3 * b - 3 + i, k] + ape[i, k]) for i in range(3)
                ]
            values, logits = zip(*pairs, strict=True)
            # The oracle adds ape in float32, the twin in float64.
            assert math.isclose(got[b, k], plainly(values, logits), rel_tol=1e-6, abs_tol=1e-6)


def test_oracle_at_positions_gives_the_blocks_that_end_there() -> None:
    kv, score, ape = (x.astype(np.float64) for x in rows(24, 10, 4))
    blocks = compressor_pool(kv, score, ape, 0, 24, 0, 1, 6).value
    at = compressor_pool_at(kv, score, ape, np.arange(-1, 24), 24, 1).value
    for position in range(-1, 24):
        ends = (position + 1) % 4 == 0 and position >= 0
        expected = blocks[position // 4] if ends else np.zeros(5)
        assert np.array_equal(at[position + 1], expected)


@pytest.mark.parametrize(("ratio", "overlap"), [(4, 1), (5, 1), (16, 0), (40, 0)])
def test_one_block_at_a_time_gives_the_bytes_of_all(ratio: int, overlap: int, run: Run) -> None:
    kv, score, ape = rows(4 * ratio, 34, ratio)
    together = pool(run, kv, score, ape, 4, overlap=overlap)
    for b in range(4):
        # As decode holds them: the block before, if there is one, then the block.
        low = (b - 1) * ratio if overlap and b else b * ratio
        pending = [np.ascontiguousarray(x[low : (b + 1) * ratio]) for x in (kv, score)]
        named = {"first": b * ratio - low, "previous": int(low < b * ratio), "overlap": overlap}
        assert np.array_equal(pool(run, *pending, ape, 1, **named)[0], together[b])


def test_a_missing_block_before_may_be_rows_of_minus_infinity(run: Run) -> None:
    kv, score, ape = rows(4, 20, 4)
    alone = pool(run, kv, score, ape, 1, overlap=1)
    padded_kv = np.concatenate([np.full((4, 20), np.nan, np.float32), kv])
    padded = np.concatenate([np.full((4, 20), -np.inf, np.float32), score])
    got = pool(run, padded_kv, padded, ape, 1, overlap=1, first=4, previous=1)
    assert np.array_equal(got, alone)


def test_a_ring_gives_the_bytes_of_a_buffer_wherever_it_begins(run: Run) -> None:
    kv, score, ape = rows(256, 6, 4)
    for start in range(128):
        first = 4 * -(-start // 4) + 4
        slots = (first - 4 + np.arange(12)) % 14
        in_ring = [np.full((14, 6), np.nan, np.float32) for _ in range(2)]
        for held, raw in zip(in_ring, (kv, score), strict=True):
            held[slots] = raw[first - 4 : first + 8]
        named = {"overlap": 1, "previous": 1, "first": first}
        expected = pool(run, kv, score, ape, 2, **named)
        assert np.array_equal(pool(run, *in_ring, ape, 2, **named, ring=14), expected), start


def test_a_chunk_may_begin_anywhere_in_a_block(run: Run) -> None:
    # Blocks are cut by position: in rows from position `start` on, a block begins off their grid.
    kv, score, ape = rows(160, 6, 4)
    whole = pool(run, kv, score, ape, 40, overlap=1)
    for start in range(128):
        block = -(-start // 4) + 1
        named = {"overlap": 1, "previous": 1, "first": 4 * block - start}
        got = pool(run, kv[start:], score[start:], ape, 3, **named)
        assert np.array_equal(got, whole[block : block + 3]), start


@pytest.mark.parametrize(("ratio", "overlap"), [(4, 1), (128, 0)])
def test_positions_on_the_device_give_the_bytes_of_positions_at_the_call(
    ratio: int, overlap: int, run: Run
) -> None:
    count = 3 * ratio
    kv, score, ape = rows(count, 12, ratio)
    blocks = pool(run, kv, score, ape, 3, overlap=overlap)
    positions = np.int32([ratio - 2, *(b * ratio + ratio - 1 for b in range(3)), ratio])
    named = dict(ring=count, overlap=overlap, kv=kv, score=score, ape=ape, positions=positions)
    sizes = {"T": 5, "S": count, "C": ratio, "K": 12 // (1 + overlap)}
    got = run("compressor_pool_at", **sizes, **named).y
    assert np.array_equal(got[1:4], blocks)
    assert not got[[0, 4]].any()


def test_rejected_rows_leave_no_trace_in_a_ring(run: Run) -> None:
    # A round wrote positions 30 .. 35; 30 and 31 were kept, 32 on came again with other rows.
    kv, score, ape = rows(40, 6, 4)
    wrong_kv, wrong_score, _ = rows(40, 6, 4, seed=1)
    sizes = {"T": 6, "S": 14, "C": 4, "K": 3}
    named = {"ring": 14, "overlap": 1, "ape": ape, "positions": np.arange(30, 36, dtype=np.int32)}

    def held(*rounds: tuple[np.ndarray, range]) -> np.ndarray:
        ring = np.full((14, 6), np.nan, np.float32)
        for raw, written in rounds:
            for position in written:
                ring[position % 14] = raw[position]
        return ring

    plain = [held((raw, range(36))) for raw in (kv, score)]
    expected = run("compressor_pool_at", **sizes, **named, kv=plain[0], score=plain[1]).y
    again = [
        held((raw, range(32)), (wrong, range(32, 36)), (raw, range(32, 36)))
        for raw, wrong in ((kv, wrong_kv), (score, wrong_score))
    ]
    got = run("compressor_pool_at", **sizes, **named, kv=again[0], score=again[1]).y
    assert np.array_equal(got, expected)
    # Position 31 ends a block that is the same while the rejected rows are still there.
    early = [
        held((raw, range(32)), (wrong, range(32, 36)))
        for raw, wrong in ((kv, wrong_kv), (score, wrong_score))
    ]
    got = run("compressor_pool_at", **sizes, **named, kv=early[0], score=early[1]).y
    assert np.array_equal(got[:2], expected[:2]) and expected[1].any()
    assert not np.array_equal(got[5], expected[5])


def test_a_row_of_minus_infinity_is_absent_whatever_it_holds(run: Run) -> None:
    kv, score, ape = rows(4, 5, 4)
    score[1], kv[1] = -np.inf, np.nan
    got = pool(run, kv, score, ape, 1)
    kv[1] = 7.0
    assert np.isfinite(got).all() and np.array_equal(pool(run, kv, score, ape, 1), got)
    score[...] = -np.inf
    assert not pool(run, kv, score, ape, 1).any()


def test_equal_scores_give_the_mean_of_the_rows(run: Run) -> None:
    kv, _, ape = rows(128, 3, 128)
    got = pool(run, kv, np.zeros_like(kv), np.full_like(ape, -3.5), 1)[0]
    mean = kv.astype(np.float64).mean(axis=0)
    assert (np.abs(got - mean) <= spacing(mean, "f32")).all()


def test_rows_past_the_buffer_are_refused(run: Run) -> None:
    kv, score, ape = rows(11, 6, 4)
    with pytest.raises(LaunchError, match="past the last one"):
        pool(run, kv, score, ape, 3)


def test_a_ring_too_short_for_its_blocks_is_refused(run: Run) -> None:
    kv, score, ape = rows(11, 6, 4)
    with pytest.raises(LaunchError, match="share rows"):
        pool(run, kv, score, ape, 2, overlap=1, previous=1, first=8, ring=11)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(0.1, 50))
def test_a_pool_is_a_convex_combination(seed: int, ratio: int, spread: float) -> None:
    kv, score, ape = (x.astype(np.float64) for x in rows(2 * ratio, 4, ratio, seed))
    got = compressor_pool(kv, spread * score, ape, 0, 2 * ratio, 0, 1, 2).value
    for b, values in enumerate((kv[:ratio, 2:], np.concatenate([kv[:ratio, :2], kv[ratio:, 2:]]))):
        assert (got[b] >= values.min(axis=0) - 1e-12).all()
        assert (got[b] <= values.max(axis=0) + 1e-12).all()
