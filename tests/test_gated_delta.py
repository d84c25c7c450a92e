"""Pieces of a gated DeltaNet layer: by hand, cut anywhere, and row by row."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_conv_contract = contract_tests("gated_delta_conv")
test_tail_contract = contract_tests("gated_delta_tail")
test_unit_contract = contract_tests("gated_delta_unit")
test_decay_contract = contract_tests("gated_delta_decay")
test_scan_contract = contract_tests("gated_delta_scan")
test_conv_speed = speed_tests("gated_delta_conv")
test_tail_speed = speed_tests("gated_delta_tail")
test_unit_speed = speed_tests("gated_delta_unit")
test_decay_speed = speed_tests("gated_delta_decay")
test_scan_speed = speed_tests("gated_delta_scan")


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_one_channel_by_hand(run: Run) -> None:
    # Older inputs 1, 2, then 3: weights 1, 10, 100 give 321, which silu leaves as it is.
    content = dict(u=np.float32([[3]]), w=np.float32([[1, 10, 100]]), state=np.float32([[1, 2]]))
    assert run("gated_delta_conv", T=1, D=1, C=3, **content).y.tolist() == [[321.0]]
    del content["w"]
    assert run("gated_delta_tail", T=1, D=1, taps=3, **content).after.tolist() == [[2.0, 3.0]]


def test_a_convolution_may_be_cut_anywhere(run: Run) -> None:
    u, w, state = normal(6, 40, seed=0), normal(40, 4, seed=1), normal(40, 3, seed=2)
    whole = run("gated_delta_conv", T=6, D=40, C=4, u=u, w=w, state=state).y
    for cut in range(1, 6):
        tail = run("gated_delta_tail", T=cut, D=40, taps=4, u=u[:cut], state=state).after
        rest = run(
            "gated_delta_conv", T=6 - cut, D=40, C=4, u=u[cut:], w=w, state=tail.astype(np.float32)
        ).y
        assert rest.tobytes() == whole[cut:].tobytes()


def test_one_step_of_the_delta_rule_by_hand(run: Run) -> None:
    # The state predicts 2 for the key; half of it is kept, so 1. Error 3 - 1, half of it learnt.
    content = dict(
        k=np.float32([[[1]]]),
        q=np.float32([[[5]]]),
        v=np.float32([[[3]]]),
        factor=0.5,
        beta=0.5,
        state=np.float32([[[2]]]),
    )
    got = run("gated_delta_scan", T=1, G=1, H=1, D=1, K=1, **content)
    assert got.after.tolist() == [[[2.0]]]
    assert got.y.tolist() == [[[10.0]]]


def test_a_scan_may_be_cut_anywhere(run: Run) -> None:
    sizes = dict(G=2, H=4, D=6, K=40)
    parts = dict(
        q=normal(5, 2, 40, seed=0),
        k=normal(5, 2, 40, seed=1) / 6,
        v=normal(5, 4, 6, seed=2),
        factor=np.abs(normal(5, 4, seed=3)) % 1,
        beta=np.abs(normal(5, 4, seed=4)) % 1,
    )
    state = normal(4, 6, 40, seed=5)
    whole = run("gated_delta_scan", T=5, **sizes, **parts, state=state)
    for cut in range(1, 5):
        head = {n: a[:cut] for n, a in parts.items()}
        middle = run("gated_delta_scan", T=cut, **sizes, **head, state=state).after
        tail = {n: a[cut:] for n, a in parts.items()}
        rest = run("gated_delta_scan", T=5 - cut, **sizes, **tail, state=middle.astype(np.float32))
        assert rest.y.tobytes() == whole.y[cut:].tobytes()
        assert rest.after.tobytes() == whole.after.tobytes()


def test_decays_by_hand(run: Run) -> None:
    got = run(
        "gated_delta_decay",
        T=1,
        H=1,
        a=np.float32([[math.log(math.e - 1)]]),
        b=0.0,
        a_log=math.log(2),
        dt_bias=0.0,
    )
    # softplus is 1 and its rate 2.
    assert got.factor[0, 0] == pytest.approx(math.exp(-2), rel=1e-6)
    assert got.beta[0, 0] == 0.5


def test_unit_heads_have_the_length_of_the_gain(run: Run) -> None:
    got = run("gated_delta_unit", T=3, G=2, K=50, x=normal(3, 2, 50, seed=0), gain=0.5, eps=1e-6).y
    assert np.sqrt((got * got).sum(axis=-1)) == pytest.approx(np.full((3, 2), 0.5), rel=1e-5)


def test_key_heads_that_do_not_divide_the_value_heads_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="equally many"):
        run("gated_delta_scan", T=1, G=2, H=3, D=1, K=1)
