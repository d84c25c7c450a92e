"""Sink attention: by hand, in plain loops, and the ways in which a list may be written or cut."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testing import contract_tests, speed_tests
from oracle.attention import sink_attention

Run = Callable[..., SimpleNamespace]

test_contract_attention_sink = contract_tests("attention_sink")
test_contract_attention_sink_f32 = contract_tests("attention_sink_f32")
test_contract_attention_sink_split = contract_tests("attention_sink_split")
test_contract_attention_sink_split_f32 = contract_tests("attention_sink_split_f32")
test_contract_attention_sink_join = contract_tests("attention_sink_join")
test_contract_attention_sink_join_f32 = contract_tests("attention_sink_join_f32")
test_speed_attention_sink = speed_tests("attention_sink")
test_speed_attention_sink_f32 = speed_tests("attention_sink_f32")
test_speed_attention_sink_split = speed_tests("attention_sink_split")
test_speed_attention_sink_split_f32 = speed_tests("attention_sink_split_f32")
test_speed_attention_sink_join = speed_tests("attention_sink_join")
test_speed_attention_sink_join_f32 = speed_tests("attention_sink_join_f32")

ARMS = {"": np.float64, "_f32": np.float32}
arms = pytest.mark.parametrize("arm", ARMS)

# d = 2, scale 2^-1/2: q = (1, 0.5), rows (1,0), (0.5,2), (-1,1), sink 0.3 give the logits
# 0.707106781, 1.060660172, -0.353553391 and the output below.
KNOWN_ROWS = np.array([[1, 0], [0.5, 2], [-1, 1]])
KNOWN_OUTPUT = (0.397515839, 0.929726494)


def inputs(tokens: int, heads: int, width: int, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (tokens, heads, width), "kv": (rows, width), "sink": (heads,)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def axes(q: np.ndarray, kv: np.ndarray, ids: np.ndarray) -> dict[str, int]:
    return {"T": len(q), "H": q.shape[1], "K": q.shape[2], "N": len(kv), "S": ids.shape[1]}


def whole(
    run: Run, arm: str, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, sink: np.ndarray
) -> np.ndarray:
    """Every list by one block per eight heads."""
    ids = np.asarray(ids, np.int32)
    named = dict(q=q, kv=kv, ids=ids, sink=sink, scale=0.5)
    return run(f"attention_sink{arm}", **axes(q, kv, ids), **named).o


def in_parts(
    run: Run, arm: str, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, sink: np.ndarray
) -> np.ndarray:
    """Every list chunk by chunk, then joined."""
    ids = np.asarray(ids, np.int32)
    named = dict(q=q, kv=kv, ids=ids, scale=0.5)
    parts = run(f"attention_sink_split{arm}", **axes(q, kv, ids), **named)
    sums = {n: getattr(parts, n).astype(ARMS[arm]) for n in ("power", "total", "value")}
    tokens, chunks, heads, width = sums["value"].shape
    shape = {"T": tokens, "B": chunks, "H": heads, "K": width}
    return run(f"attention_sink_join{arm}", **shape, **sums, sink=sink).o


WAYS = {"whole": whole, "in parts": in_parts}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def plainly(
    q: np.ndarray, kv: np.ndarray, ids: np.ndarray, sink: np.ndarray, scale: float
) -> np.ndarray:
    """The twin: one number at a time."""
    out = np.zeros(q.shape)
    for t, h in np.ndindex(q.shape[:2]):
        above, below = [0.0] * q.shape[2], math.exp(sink[h])
        for i in ids[t]:
            if i < 0:
                continue
            product = sum(a * b for a, b in zip(q[t, h], kv[i], strict=True))
            weight = math.exp(scale * product)
            below += weight
            for k in range(q.shape[2]):
                above[k] += weight * kv[i, k]
        out[t, h] = [a / below for a in above]
    return out


@arms
def test_one_head_over_three_rows_gives_the_known_output(arm: str, run: Run) -> None:
    q, sink, listed = np.array([[[1, 0.5]]]), np.array([0.3]), np.array([[0, 1, 2]])
    value = sink_attention(q, KNOWN_ROWS, listed, sink, scale=2**-0.5)[0, 0]
    assert np.abs(value - KNOWN_OUTPUT).max() < 5e-10
    # The kernel takes widths of a multiple of 4: two columns of zeros change no logit.
    pad = ((0, 0), (0, 2))
    got = run(
        f"attention_sink{arm}",
        **{"T": 1, "H": 1, "K": 4, "N": 3, "S": 3},
        q=np.array([[[1, 0.5, 0, 0]]], np.float32),
        kv=np.pad(KNOWN_ROWS, pad).astype(np.float32),
        ids=listed.astype(np.int32),
        sink=np.array([0.3], np.float32),
        scale=2**-0.5,
    ).o[0, 0]
    assert np.abs(got[:2] - KNOWN_OUTPUT).max() < 2e-7
    assert got[2:].tolist() == [0, 0]


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    q, kv, sink = (rng.standard_normal(s) for s in ((3, 2, 4), (9, 4), (2,)))
    ids = rng.integers(-3, 9, (3, 11))
    expected = plainly(q, kv, ids, sink, 0.7)
    assert np.allclose(sink_attention(q, kv, ids, sink, scale=0.7), expected, rtol=1e-13, atol=0)


@arms
@ways
@pytest.mark.parametrize("length", [0, 1, 39, 40, 41, 80, 127])
def test_padding_does_not_show(
    length: int, way: Callable[..., np.ndarray], arm: str, run: Run
) -> None:
    rng = np.random.default_rng(length)
    content = inputs(1, 9, 12, 50, seed=length)
    entries = rng.integers(0, 50, length)
    written = []
    for size in (max(length, 1), length + 7, length + 90):
        behind, anywhere = np.arange(length), np.sort(rng.choice(size, length, replace=False))
        for at in (behind, size - length + behind, anywhere):
            ids = np.full((1, size), -1)
            ids[0, at] = entries
            written.append(way(run, arm, ids=ids, **content))
    assert all(np.array_equal(w, written[0]) for w in written)
    assert length or not written[0].any()


@arms
@pytest.mark.parametrize("slots", [1, 40, 41, 200])
def test_parts_give_the_bytes_of_the_whole(slots: int, arm: str, run: Run) -> None:
    rng = np.random.default_rng(slots)
    content = inputs(4, 11, 20, 70, seed=slots)
    content["kv"] *= 30  # powers far apart
    ids = rng.integers(-20, 70, (4, slots))
    expected = whole(run, arm, ids=ids, **content)
    assert np.array_equal(in_parts(run, arm, ids=ids, **content), expected)


@arms
@ways
def test_rows_of_unequal_lists_are_what_they_are_alone(
    way: Callable[..., np.ndarray], arm: str, run: Run
) -> None:
    rng = np.random.default_rng(3)
    content = inputs(5, 8, 16, 90)
    lists = [rng.integers(0, 90, n) for n in (0, 3, 40, 77, 120)]
    ids = np.full((5, 120), -1)
    for row, entries in zip(ids, lists, strict=True):
        row[: len(entries)] = entries
    together = way(run, arm, ids=ids, **content)
    for t, entries in enumerate(lists):
        alone = {**content, "q": content["q"][t : t + 1]}
        short = entries[None] if len(entries) else [[-1]]
        assert np.array_equal(way(run, arm, ids=short, **alone)[0], together[t])


@arms
@ways
def test_ids_outside_the_rows_are_absent(
    way: Callable[..., np.ndarray], arm: str, run: Run
) -> None:
    content = inputs(1, 3, 8, 10)
    strange = [[4, 10, -1, 2, -2, 11, 2**31 - 1, 7, -(2**31)]]
    got = way(run, arm, ids=strange, **content)
    assert np.array_equal(got, way(run, arm, ids=[[4, 2, 7]], **content))


@arms
@ways
def test_an_unlisted_row_has_no_influence(
    way: Callable[..., np.ndarray], arm: str, run: Run
) -> None:
    content = inputs(1, 3, 8, 10)
    ids = [[3, -1, 5, 9]]
    expected = way(run, arm, ids=ids, **content)
    content["kv"][[0, 1, 2, 4, 6, 7, 8]] = np.nan
    assert np.array_equal(way(run, arm, ids=ids, **content), expected)


@arms
def test_an_entry_listed_twice_counts_twice(arm: str, run: Run) -> None:
    content = inputs(1, 2, 8, 6)
    got = whole(run, arm, ids=[[2, 2, 5]], **content)
    other = {**content, "kv": content["kv"].copy()}
    other["kv"][0] = other["kv"][2]
    assert np.array_equal(whole(run, arm, ids=[[2, 0, 5]], **other), got)


@arms
def test_without_a_sink_one_row_comes_back_itself(arm: str, run: Run) -> None:
    content = inputs(1, 8, 16, 4)
    content["sink"][:] = -np.inf
    got = whole(run, arm, ids=[[-1, 3]], **content)
    # Its weight is divided out again, which may round twice in f32.
    assert np.allclose(got[0], content["kv"][3].astype(np.float64), rtol=2**-23, atol=0)


@arms
def test_a_large_sink_takes_everything_and_a_low_one_nothing(arm: str, run: Run) -> None:
    content = inputs(1, 1, 8, 5)
    ids = [[0, 1, 2, 3, 4]]
    of = {
        s: whole(run, arm, ids=ids, **{**content, "sink": np.float32([s])})
        for s in (3e38, 400, -400, -np.inf)
    }
    assert not of[3e38].any() and np.abs(of[400]).max() < 1e-30
    assert np.array_equal(of[-400], of[-np.inf])


@arms
def test_logits_hundreds_apart_leave_the_largest_alone(arm: str, run: Run) -> None:
    content = inputs(1, 2, 4, 3)
    content["q"][...] = [2, 0, 0, 0]
    content["kv"][:, 0] = [0, 900, -900]
    got = whole(run, arm, ids=[[0, 1, 2]], **content)
    assert np.allclose(got[0, 0], content["kv"][1].astype(np.float64), rtol=2**-23, atol=0)


@arms
def test_adding_to_every_logit_and_the_sink_changes_nothing_but_rounding(
    arm: str, run: Run
) -> None:
    content = inputs(1, 2, 8, 30)
    content["q"][..., 0] = 2.0  # at scale 0.5 the first column is added to each logit
    content["kv"][:, 0] = 0.0
    before = whole(run, arm, ids=[range(30)], **content)
    content["kv"][:, 0] = 50.0
    content["sink"] += 50.0
    after = whole(run, arm, ids=[range(30)], **content)
    assert np.allclose(before[..., 1:], after[..., 1:], rtol=0, atol=2e-5)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(-30, 30))
def test_outputs_lie_between_zero_and_the_rows(seed: int, slots: int, sink: float) -> None:
    rng = np.random.default_rng(seed)
    q, kv = rng.standard_normal((1, 2, 4)), rng.standard_normal((20, 4))
    ids = rng.integers(-1, 20, (1, slots))
    got = sink_attention(q, kv, ids, np.full(2, sink), scale=1.0)
    rows = np.append(kv[ids[0][ids[0] >= 0]], np.zeros((1, 4)), axis=0)
    assert (got >= rows.min(axis=0) - 1e-12).all() and (got <= rows.max(axis=0) + 1e-12).all()
