"""The compressor: plain loops, and a state machine fed row by row against pooling at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.compressor import no_rows, pool_block, pool_blocks


def plain_pool(kv, score, ape, overlap):
    """Every channel of every block by its own loop over (value, logit) pairs."""
    ratio, channels = ape.shape
    width = channels // 2 if overlap else channels
    rows = []
    for j in range(len(kv) // ratio):
        row = []
        for e in range(width):
            pairs = []
            if overlap and j:
                before = (j - 1) * ratio
                pairs = [
                    (kv[before + i, e], score[before + i, e] + ape[i, e]) for i in range(ratio)
                ]
            at = width + e if overlap else e
            here = j * ratio
            pairs += [(kv[here + i, at], score[here + i, at] + ape[i, at]) for i in range(ratio)]
            top = max(logit for _, logit in pairs)
            weights = [math.exp(logit - top) for _, logit in pairs]
            total = math.fsum(w * v for w, (v, _) in zip(weights, pairs, strict=True))
            row.append(total / math.fsum(weights))
        rows.append(row)
    return np.array(rows)


def random_rows(blocks, ratio, channels, seed=0):
    rng = np.random.default_rng(seed)
    n = blocks * ratio
    return (
        rng.normal(0, 1, (n, channels)),
        rng.normal(0, 3, (n, channels)),
        rng.normal(0, 1, (ratio, channels)),
    )


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (8, False), (128, False), (2, True)])
def test_blocks_are_the_plain_loops(ratio, overlap):
    kv, score, ape = random_rows(3, ratio, 6)
    got = pool_blocks(kv, score, ape, overlap=overlap)
    np.testing.assert_allclose(got, plain_pool(kv, score, ape, overlap), rtol=1e-12, atol=1e-12)


def test_an_absent_block_weighs_nothing():
    kv, score, ape = random_rows(1, 4, 6)
    alone = pool_blocks(kv, score, ape, overlap=True)
    masked = pool_blocks(kv, score, ape, overlap=True, previous=no_rows(4, 6))
    assert alone.tobytes() == masked.tobytes()
    other = pool_blocks(kv, score, ape, overlap=True, previous=(kv, score))
    assert np.abs(other - alone).max() > 0.01


def test_the_softmax_is_a_channels_own():
    values = np.array([[1.0, 1.0], [2.0, 2.0]])
    logits = np.array([[0.0, 100.0], [100.0, 0.0]])
    assert pool_block(values, logits).tolist() == [2.0, 1.0]


def test_large_logits_do_not_overflow():
    values = np.array([[1.0], [3.0]])
    assert pool_block(values, np.array([[1e4], [1e4]])).tolist() == [2.0]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(4, True), (4, False), (3, False)]),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_pieces_of_any_size_pool_the_same_rows(kind, pieces, seed):
    ratio, overlap = kind
    blocks = -(-sum(pieces) // ratio)
    kv, score, ape = random_rows(blocks, ratio, 4, seed)
    end = sum(pieces) // ratio * ratio
    want = pool_blocks(kv[:end], score[:end], ape, overlap=overlap) if end else np.zeros((0, 4))
    held, before, got, at = 0, no_rows(ratio, 4), [], 0
    for size in pieces:
        at, held = at + size, held + size
        whole = held // ratio * ratio
        first = at - held
        if whole:
            rows = slice(first, first + whole)
            previous = before if overlap else None
            got.append(pool_blocks(kv[rows], score[rows], ape, overlap=overlap, previous=previous))
            last = slice(first + whole - ratio, first + whole)
            before, held = (kv[last], score[last]), held - whole
    assert np.concatenate([*got, want[:0]]).tobytes() == want.tobytes()
