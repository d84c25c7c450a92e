"""The Markov bias: by hand, in plain loops, against the chain of kernels, ids that name nobody."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.spec import F32, I32
from lab.testing import contract_tests, speed_tests
from oracle.formats import encode
from oracle.markov import markov_bias

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("markov_bias")
test_f32_contract = contract_tests("markov_bias_f32")
test_speed = speed_tests("markov_bias")
test_f32_speed = speed_tests("markov_bias_f32")

KERNELS = ["markov_bias", "markov_bias_f32"]
OUTSIDE = [-1, -(2**31), 2**31 - 1]


def random(V: int, R: int, T: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights as bits, ids and logits."""
    rng = np.random.default_rng(seed)
    return dict(
        w1=encode(rng.standard_normal((V, R)), "bf16"),
        w2=encode(rng.standard_normal((V, R)), "bf16"),
        ids=rng.integers(0, V, T).astype(np.int32),
        logits=rng.standard_normal((T, V)).astype(np.float32),
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_logits_by_hand(kernel: str, run: Run) -> None:
    # Row 2 of w1 is (3, ..., 3); times rows of ones, twos and minus ones: 24, 48, -24.
    w1 = np.repeat([[1.0], [2.0], [3.0]], 8, axis=1)
    w2 = np.repeat([[1.0], [2.0], [-1.0]], 8, axis=1)
    logits = np.array([[0.5, 1.0, 24.0]], np.float32)
    value, magnitude = markov_bias(w1, w2, np.array([2]), logits.astype(np.float64))
    assert (value.tolist(), magnitude.tolist()) == ([[24.5, 49, 0]], [[24.5, 49, 48]])
    ids = np.array([2], np.int32)
    stored = dict(w1=encode(w1, "bf16"), w2=encode(w2, "bf16"), ids=ids, logits=logits)
    assert run(kernel, T=1, V=3, R=8, **stored).logits.tolist() == [[24.5, 49, 0]]


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    w1, w2, logits = (rng.standard_normal(s) for s in ((4, 3), (4, 3), (5, 4)))
    ids = np.array([3, 0, -1, 4, 1])
    value, magnitude = markov_bias(w1, w2, ids, logits)
    for t, token in enumerate(ids):
        for v in range(4):
            if not 0 <= token < 4:
                assert np.isnan(value[t, v])
                continue
            terms = [logits[t, v], *(w2[v, r] * w1[token, r] for r in range(3))]
            assert value[t, v] == pytest.approx(sum(terms), abs=1e-14)
            assert magnitude[t, v] == pytest.approx(sum(map(abs, terms)), abs=1e-14)


@pytest.mark.parametrize(("V", "R", "T"), [(37, 8, 1), (131, 264, 3), (515, 256, 8)])
@pytest.mark.parametrize(
    ("kernel", "dots"),
    [("markov_bias", "island_dots_bf16"), ("markov_bias_f32", "island_dots_bf16_f32")],
)
def test_the_bias_is_row_then_products_then_sum(
    kernel: str, dots: str, V: int, R: int, T: int, run: Run
) -> None:
    # Tall weights: island_dots then keeps a row in one part, as the bias always does.
    V = max(V, 4096)
    made = random(V, R, T, seed=2)
    x = run("movement_embed", V=V, D=R, T=T, table=made["w1"], ids=made["ids"]).y
    bias = run(dots, T=T, N=V, K=R, x=x.astype(np.float32), w=made["w2"]).y.astype(np.float32)
    flat = dict(x=bias.reshape(-1), y=made["logits"].reshape(-1))
    chained = run("movement_add", N=T * V, **flat).y.reshape(T, V)
    assert np.array_equal(run(kernel, T=T, V=V, R=R, **made).logits, chained)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_has_the_same_bytes_alone_and_among_nineteen(kernel: str, run: Run) -> None:
    made = random(133, 264, 19, seed=3)
    together = run(kernel, T=19, V=133, R=264, **made).logits
    for t in (0, 7, 8, 18):
        mine = {**made, "ids": made["ids"][t : t + 1], "logits": made["logits"][t : t + 1]}
        assert np.array_equal(run(kernel, T=1, V=133, R=264, **mine).logits[0], together[t])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_logit_does_not_depend_on_the_rows_around_its_own(kernel: str, run: Run) -> None:
    # A row of w2 may share its warp with any others: move everything by some rows.
    made = random(200, 256, 2, seed=4)
    whole = run(kernel, T=2, V=200, R=256, **made).logits
    for first in (1, 7, 64):
        moved = {
            **made,
            "w2": np.roll(made["w2"], -first, axis=0).copy(),
            "logits": np.roll(made["logits"], -first, axis=1).copy(),
        }
        got = run(kernel, T=2, V=200, R=256, **moved).logits
        assert np.array_equal(got, np.roll(whole, -first, axis=1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_id_that_names_nobody_makes_its_row_nan_and_no_other(kernel: str, run: Run) -> None:
    made = random(41, 64, 6, seed=5)
    good = run(kernel, T=6, V=41, R=64, **made).logits
    ids = made["ids"].copy()
    ids[1:5] = [*OUTSIDE, 41]
    got = run(kernel, T=6, V=41, R=64, **{**made, "ids": ids}).logits
    assert np.isnan(got[1:5]).all()
    assert np.array_equal(got[[0, 5]], good[[0, 5]])


def test_a_chain_stays_on_the_device_and_equals_a_chain_by_hand(run: Run) -> None:
    device = HostDevice()
    from dsv4.registry import kernels

    bias, argmax = kernels()["markov_bias"], kernels()["argmax"]
    made = random(97, 64, 5, seed=6)
    ids = device.empty((6,), I32)
    ids[0] = 11
    logits = device.empty((5, 97), F32)
    logits[...] = made["logits"]
    for step in range(5):
        row = logits[step : step + 1]
        bias(made["w1"], made["w2"], ids[step : step + 1], row)
        argmax(row, out=ids[step + 1 : step + 2])
    token = 11
    for step in range(5):
        by_hand = run(
            "markov_bias", T=1, V=97, R=64, w1=made["w1"], w2=made["w2"],
            ids=np.array([token], np.int32), logits=made["logits"][step : step + 1],
        ).logits[0]  # fmt: skip
        token = int(np.argmax(by_hand))
        assert ids[step + 1] == token
        assert np.array_equal(logits[step], by_hand.astype(np.float32))


def test_a_rank_that_is_no_multiple_of_eight_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="8 consecutive"):
        run("markov_bias", T=1, V=4, R=12, ids=np.zeros(1, np.int32))
