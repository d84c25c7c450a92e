"""The head: by hand, in plain loops, in the documented order, and the argmax inside one pass."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.formats import decode, encode
from oracle.lm_head import lm_head, lm_head_argmax

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("lm_head")
test_f32_contract = contract_tests("lm_head_f32")
test_argmax_contract = contract_tests("lm_head_argmax")
test_speed = speed_tests("lm_head")
test_f32_speed = speed_tests("lm_head_f32")
test_argmax_speed = speed_tests("lm_head_argmax")

NAN, INF = float("nan"), float("inf")
SHAPES = [(5, 8), (37, 264), (130, 1288), (515, 2048)]


def whole(*shape: int, seed: int, unit: float = 2.0**-6) -> np.ndarray:
    """Small multiples of a power of two: their products and sums are exact in float64."""
    return np.random.default_rng(seed).integers(-127, 128, shape) * unit


def greedy(run: Run, x: np.ndarray, w: np.ndarray, keys: int = 0) -> SimpleNamespace:
    """One pass of lm_head_argmax over float64 values."""
    (T, D), V = x.shape, len(w)
    stored = dict(x=encode(x, "f32"), w=encode(w, "bf16"))
    return run("lm_head_argmax", T=T, V=V, D=D, keys=keys, ticket=0, **stored)


def in_the_documented_order(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y [T,V] in float32: 8 elements a lane and step, steps ascending, then the butterfly."""
    k = x.shape[1]
    steps = -(-k // 256)
    x, w = (np.pad(a, ((0, 0), (0, steps * 256 - k))).reshape(-1, steps, 32, 8) for a in (x, w))
    lanes = np.zeros((len(x), len(w), 32), np.float32)
    for step in range(steps):
        for i in range(8):
            product = x[:, None, step, :, i] * w[None, :, step, :, i]
            # Exact in float64, so this rounds once, as a fused multiply and add does.
            lanes = (lanes + product).astype(np.float32)
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[..., np.arange(32) ^ distance]
    return lanes[..., 0]


def test_two_logits_by_hand(run: Run) -> None:
    # (1, ..., 8) . (1, ..., 1) = 36; with alternating signs 1 - 2 + 3 - ... - 8 = -4.
    x, w = np.arange(1.0, 9.0)[None], np.stack([np.tile([1.0, -1.0], 4), np.ones(8)])
    value, magnitude = lm_head(x, w)
    assert (value.tolist(), magnitude.tolist()) == ([[-4, 36]], [[36, 36]])
    for kernel in ("lm_head", "lm_head_f32"):
        got = run(kernel, T=1, V=2, D=8, x=encode(x, "f32"), w=encode(w, "bf16")).y
        assert got.tolist() == [[-4, 36]]
    found = greedy(run, x, w)
    assert (found.ids.tolist(), found.logit.tolist()) == ([1], [36])


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((3, 5)), rng.standard_normal((4, 5))
    value, magnitude = lm_head(x, w)
    best = lm_head_argmax(x, w, np.zeros(3, np.int64), np.zeros(1, np.int64))
    for t in range(3):
        row = [sum(x[t, d] * w[v, d] for d in range(5)) for v in range(4)]
        assert value[t] == pytest.approx(row, abs=1e-14)
        for v in range(4):
            terms = sum(abs(x[t, d] * w[v, d]) for d in range(5))
            assert magnitude[t, v] == pytest.approx(terms, abs=1e-14)
        assert best["ids"][t] == row.index(max(row))
        assert best["logit"].value[t] == pytest.approx(max(row), abs=1e-14)


@pytest.mark.parametrize(("v", "d"), SHAPES)
def test_float32_bytes_are_those_of_the_documented_order(v: int, d: int, run: Run) -> None:
    x, w = whole(2, d, seed=2, unit=2.0**-3 + 2.0**-20), whole(v, d, seed=3)
    x = decode(encode(x, "f32"), "f32")
    got = run("lm_head_f32", T=2, V=v, D=d, x=encode(x, "f32"), w=encode(w, "bf16")).y
    assert np.array_equal(got, in_the_documented_order(x, w))


@pytest.mark.parametrize(("v", "d"), SHAPES)
def test_float64_sums_keep_what_float32_sums_lose(v: int, d: int, run: Run) -> None:
    # 2^30, then ones that a float32 sum of the same lane swallows, then -2^30.
    x = np.ones((1, d))
    x[0, 0], x[0, d - 1] = 2.0**30, -(2.0**30)
    w = np.ones((v, d))
    stored = dict(x=encode(x, "f32"), w=encode(w, "bf16"))
    assert (run("lm_head", T=1, V=v, D=d, **stored).y == d - 2).all()
    assert (run("lm_head_f32", T=1, V=v, D=d, **stored).y != d - 2).all()


@pytest.mark.parametrize("kernel", ["lm_head", "lm_head_f32"])
@pytest.mark.parametrize(("v", "d"), SHAPES)
def test_a_row_has_the_same_bytes_alone_and_among_nineteen(
    kernel: str, v: int, d: int, run: Run
) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((19, d)).astype(np.float32)
    w = encode(rng.standard_normal((v, d)), "bf16")
    together = run(kernel, T=19, V=v, D=d, x=x, w=w).y
    for t in (0, 7, 8, 18):
        assert np.array_equal(run(kernel, T=1, V=v, D=d, x=x[t : t + 1], w=w).y[0], together[t])


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
@pytest.mark.parametrize(("v", "d"), SHAPES)
def test_one_pass_gives_what_logits_and_argmax_give(rows: int, v: int, d: int, run: Run) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((rows, d)).astype(np.float32), rng.standard_normal((v, d))
    stored = encode(w, "bf16")
    logits = run("lm_head_f32", T=rows, V=v, D=d, x=x, w=stored).y.astype(np.float32)
    ids = run("argmax", T=rows, V=v, x=logits).y
    found = greedy(run, x.astype(np.float64), w)
    assert np.array_equal(found.ids, ids)
    assert np.array_equal(found.logit, logits[np.arange(rows), ids])


@pytest.mark.parametrize("place", [0, 1, 31, 32, 33, 63, 64, 255, 514])
def test_the_first_of_equal_logits_wins_wherever_they_lie(place: int, run: Run) -> None:
    w = np.ones((515, 8)) * 0.5
    w[place] = w[514] = 2.0
    found = greedy(run, np.ones((3, 8)), w)
    assert found.ids.tolist() == [place] * 3
    assert found.logit.tolist() == [16.0] * 3


@pytest.mark.parametrize(
    ("rows", "index", "logit"),
    [
        ([NAN, 1.0, NAN, 2.0], 3, 16.0),  # NaN loses
        ([NAN, -INF, NAN, NAN], 1, -INF),  # even to -inf
        ([NAN, NAN, NAN, NAN], 0, NAN),
        ([-2.0, -1.0, -1.0, -3.0], 1, -8.0),
        ([-0.0, 0.0, -0.0, -1.0], 0, 0.0),  # zeros are equal
        ([1.0, INF, NAN, INF], 1, INF),
    ],
)
def test_special_logits_follow_the_rule_of_argmax(
    rows: list[float], index: int, logit: float, run: Run
) -> None:
    w = np.repeat(np.array(rows)[:, None], 8, axis=1)
    found = greedy(run, np.ones((2, 8)), w)
    assert found.ids.tolist() == [index] * 2
    assert np.array_equal(found.logit, [logit] * 2, equal_nan=True)


def test_keys_and_ticket_are_zero_again_after_every_launch(run: Run) -> None:
    x, w = whole(9, 264, seed=6), whole(131, 264, seed=7)
    found = greedy(run, x, w)
    assert not found.keys.any()
    assert not found.ticket.any()


def test_a_key_left_over_would_show(run: Run) -> None:
    # The reason why a launch zeroes its keys: the largest key there is wins over every logit.
    assert greedy(run, np.ones((1, 8)), np.ones((3, 8)), keys=0).ids == [0]
    assert greedy(run, np.ones((1, 8)), np.ones((3, 8)), keys=-2).ids == [1]


def test_a_width_that_is_no_multiple_of_eight_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="8 consecutive"):
        run("lm_head", T=1, V=4, D=12)
