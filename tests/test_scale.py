"""Factors on rows: by hand, odd, and saturating."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_softcap_contract = contract_tests("scale_softcap")
test_gate_contract = contract_tests("scale_gate")
test_softcap_speed = speed_tests("scale_softcap")
test_gate_speed = speed_tests("scale_gate")


def test_a_cap_by_hand(run: Run) -> None:
    x = np.array([[0, 2, -2, 1e6]], np.float32)
    got = run("scale_softcap", T=1, D=4, x=x, factor=2.0, cap=4.0).y[0]
    assert got == pytest.approx([0, 4 * math.tanh(1), -4 * math.tanh(1), 4], rel=1e-7)


def test_without_a_cap_rows_are_only_multiplied(run: Run) -> None:
    got = run("scale_softcap", T=1, D=2, x=np.float32([[3, -1e30]]), factor=0.5, cap=0.0).y
    assert got.tolist() == [[1.5, float(np.float32(-5e29))]]


def test_a_cap_keeps_the_order_of_logits(run: Run) -> None:
    x = np.sort(np.random.default_rng(0).standard_normal((1, 500)).astype(np.float32) * 10, axis=1)
    got = run("scale_softcap", T=1, D=500, x=x, factor=1.0, cap=30.0).y
    assert (np.diff(got[0]) >= 0).all()


def test_a_gate_by_hand(run: Run) -> None:
    gate = np.array([[0, math.log(3), -200]], np.float32)
    got = run("scale_gate", T=1, D=3, x=np.float32([[4, 4, 4]]), gate=gate).y[0]
    assert got == pytest.approx([2, 3, 0], rel=1e-7)
