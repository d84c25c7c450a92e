"""The dynamic convolution: by hand, as an identity, and causal."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("dynconv")
test_speed = speed_tests("dynconv")


def test_two_rows_by_hand(run: Run) -> None:
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    base = np.zeros((2, 2, 4), np.float32)
    base[0, 0], base[0, 1] = 1.0, 0.5
    own = np.zeros((2, 2, 2, 2), np.float32)
    own[0, 0] = [[0.1, 0.2], [9, 9]]  # the second tap of row 0 would read before the block
    own[1, 0] = [[0, 0.1], [0.5, -0.5]]
    got = run("dynconv", T=2, D=4, C=2, G=2, x=x, base=base, own=own).y
    wanted = [[1.1, 2.2, 3.6, 4.8], [6, 8, 7.7, 8.8]]
    assert got == pytest.approx(np.array(wanted), rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_fresh_module_is_the_identity(stage: int, run: Run) -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    base = np.zeros((2, 3, 40), np.float32)
    base[:, 0] = 1.0
    got = run("dynconv", T=5, D=40, C=3, G=4, x=x, base=base, own=0.0, stage=stage).y
    assert np.array_equal(got, x)


def test_a_row_never_reads_later_rows(run: Run) -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    once = run("dynconv", T=5, D=40, C=3, G=4, x=x, base=0.5, own=0.25).y
    x[3:] = np.nan
    again = run("dynconv", T=5, D=40, C=3, G=4, x=x, base=0.5, own=0.25).y
    assert np.array_equal(once[:3], again[:3])
    assert np.isnan(again[3:]).all()


def test_groups_that_do_not_divide_the_channels_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="equally many"):
        run("dynconv", T=1, D=5, C=1, G=2)
