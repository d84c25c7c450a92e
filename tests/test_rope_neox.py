"""Rotation of pairs half a rotary width apart: by hand, and what turning must keep."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.drafters.rope import neox_table
from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("rope_neox")
test_speed = speed_tests("rope_neox")


def test_a_quarter_turn_by_hand(run: Run) -> None:
    x = np.array([[[1, 2, 3, 4, 5]]], np.float32)
    table = np.array([[0, 1, 1, 0]], np.float32)  # pair 0 turns by 90 degrees, pair 1 stays
    got = run("rope_neox", T=1, H=1, K=5, R=4, P=1, x=x, table=table, positions=np.zeros(1, "i4")).x
    assert got[0, 0].tolist() == [-3, 2, 1, 4, 5]


def test_position_zero_changes_nothing(run: Run) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32)
    table = neox_table(4, 16, 1e4)
    zero = np.zeros(2, np.int32)
    got = run("rope_neox", T=2, H=3, K=16, R=16, P=4, x=x, table=table, positions=zero).x
    assert np.array_equal(got, x)


def test_a_turn_keeps_the_length_of_every_pair(run: Run) -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, 64)).astype(np.float32)
    at = np.array([1, 40, 99], np.int32)
    table = neox_table(100, 64, 1e6)
    got = run("rope_neox", T=3, H=2, K=64, R=64, P=100, x=x, table=table, positions=at).x
    before, after = (v[..., :32] ** 2 + v[..., 32:] ** 2 for v in (x.astype(float), got))
    assert np.abs(before - after).max() < 1e-5


def test_more_rotating_lanes_than_a_head_has_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="start of a head"):
        run("rope_neox", T=1, H=1, K=4, R=6, P=1, table=0.0, positions=np.zeros(1, np.int32))
