"""The confidence: by hand, in plain loops, against one product with the concatenation."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.confidence import confidence
from oracle.formats import decode, encode

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("confidence")
test_speed = speed_tests("confidence")


def random(T: int, D: int, R: int, V: int = 33, seed: int = 0) -> dict[str, np.ndarray]:
    """Random rows, weights as bits, and ids."""
    rng = np.random.default_rng(seed)
    return dict(
        x=rng.standard_normal((T, D)).astype(np.float32),
        w1=encode(rng.standard_normal((V, R)), "bf16"),
        ids=rng.integers(0, V, T).astype(np.int32),
        proj=encode(rng.standard_normal(D + R), "bf16"),
    )


def test_one_value_by_hand(run: Run) -> None:
    # The hidden row first: (1, ..., 1) . (2, ..., 2) = 16; then (3, ..., 3) . (-1, ..., -1) = -24.
    x, w1 = np.ones((1, 8)), np.repeat([[5.0], [3.0]], 8, axis=1)
    proj = np.array([2.0] * 8 + [-1.0] * 8)
    value, magnitude = confidence(x, w1, np.array([1]), proj)
    assert (value.tolist(), magnitude.tolist()) == ([-8], [40])
    stored = dict(x=encode(x, "f32"), w1=encode(w1, "bf16"), proj=encode(proj, "bf16"))
    ids = np.array([1], np.int32)
    assert run("confidence", T=1, V=2, D=8, R=8, ids=ids, **stored).y.tolist() == [-8]


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    x, w1, proj = rng.standard_normal((4, 3)), rng.standard_normal((5, 2)), rng.standard_normal(5)
    ids = np.array([4, -1, 5, 0])
    value, magnitude = confidence(x, w1, ids, proj)
    for t, token in enumerate(ids):
        if not 0 <= token < 5:
            assert np.isnan(value[t])
            continue
        terms = [x[t, d] * proj[d] for d in range(3)]
        terms += [w1[token, r] * proj[3 + r] for r in range(2)]
        assert value[t] == pytest.approx(sum(terms), abs=1e-14)
        assert magnitude[t] == pytest.approx(sum(map(abs, terms)), abs=1e-14)


@pytest.mark.parametrize(("D", "R"), [(8, 8), (200, 104), (1032, 72), (4096, 256), (16384, 264)])
def test_bytes_are_those_of_one_product_with_the_concatenation(D: int, R: int, run: Run) -> None:
    made = random(5, D, R, seed=2)
    rows = decode(made["w1"], "bf16")[made["ids"]].astype(np.float32)
    both = np.concatenate([made["x"], rows], axis=1)
    joined = run("island_dots_bf16", T=5, N=1, K=D + R, x=both, w=made["proj"][None]).y[:, 0]
    assert np.array_equal(run("confidence", T=5, V=33, D=D, R=R, **made).y, joined)


def test_a_row_has_the_same_bytes_alone_and_in_a_batch(run: Run) -> None:
    made = random(7, 1032, 72, seed=3)
    together = run("confidence", T=7, V=33, D=1032, R=72, **made).y
    for t in range(7):
        mine = {**made, "x": made["x"][t : t + 1], "ids": made["ids"][t : t + 1]}
        assert run("confidence", T=1, V=33, D=1032, R=72, **mine).y[0] == together[t]


def test_an_id_that_names_nobody_gives_nan_and_its_neighbours_do_not_change(run: Run) -> None:
    made = random(6, 520, 64, seed=4)
    good = run("confidence", T=6, V=33, D=520, R=64, **made).y
    ids = made["ids"].copy()
    ids[1:5] = [-1, -(2**31), 2**31 - 1, 33]
    got = run("confidence", T=6, V=33, D=520, R=64, **{**made, "ids": ids}).y
    assert np.isnan(got[1:5]).all()
    assert np.array_equal(got[[0, 5]], good[[0, 5]])


def test_the_hidden_row_and_the_markov_row_do_not_change_places(run: Run) -> None:
    made = random(1, 64, 64, seed=5)
    only_hidden = {**made, "proj": np.where(np.arange(128) < 64, made["proj"], 0).astype(np.uint16)}
    with_other_token = {**only_hidden, "ids": (made["ids"] + 1) % 33}
    first = run("confidence", T=1, V=33, D=64, R=64, **only_hidden).y
    assert first == run("confidence", T=1, V=33, D=64, R=64, **with_other_token).y
    assert first != run("confidence", T=1, V=33, D=64, R=64, **made).y


@pytest.mark.parametrize(("D", "R"), [(12, 8), (8, 12)])
def test_widths_that_are_no_multiples_of_eight_are_refused(D: int, R: int, run: Run) -> None:
    with pytest.raises(LaunchError, match="8 elements"):
        run("confidence", T=1, V=4, D=D, R=R, ids=np.zeros(1, np.int32))
