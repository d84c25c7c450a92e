"""The read-only stream: by hand, in plain loops, and every word exactly once."""

from collections.abc import Callable
from functools import reduce
from operator import xor
from types import SimpleNamespace

import numpy as np
import pytest

from lab.testing import contract_tests, speed_tests
from oracle.roof import roof_read

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("roof_read")
test_speed = speed_tests("roof_read")


def test_two_spans_and_a_word_after_them_by_hand(run: Run) -> None:
    # 2 vectors and 1 word over 2 blocks: 1^2^4^8 = 15; 16^32^64^128 = 240, and 3: 243.
    x = np.array([1, 2, 4, 8, 16, 32, 64, 128, 3], np.int32)
    assert roof_read(x.astype(np.int64), 2).tolist() == [15, 243]
    assert run("roof_read", N=9, B=2, x=x).y.tolist() == [15, 243]


@pytest.mark.parametrize(("count", "blocks"), [(1, 3), (17, 4), (100, 7), (64, 16)])
def test_the_oracle_is_a_loop_over_spans(count: int, blocks: int) -> None:
    x = np.random.default_rng(count).integers(-(2**31), 2**31, count)
    span = -(-(count // 4) // blocks)
    wanted = []
    for b in range(blocks):
        words = [int(x[i]) for i in range(4 * b * span, 4 * (b + 1) * span) if i < count // 4 * 4]
        words += [int(w) for w in x[count // 4 * 4 :]] if b == blocks - 1 else []
        wanted.append(reduce(xor, words, 0))
    assert roof_read(x, blocks).tolist() == wanted


@pytest.mark.parametrize("blocks", [1, 3, 5])
def test_one_changed_word_changes_one_span_by_its_own_bits(blocks: int, run: Run) -> None:
    x = np.random.default_rng(1).integers(-(2**31), 2**31, 4099).astype(np.int32)
    before = run("roof_read", N=4099, B=blocks, x=x).y
    for place in (0, 2048, 4095, 4098):
        changed = x.copy()
        changed[place] ^= 0x55
        assert (before ^ run("roof_read", N=4099, B=blocks, x=changed).y).sum() == 0x55


def test_the_xor_over_all_spans_does_not_depend_on_how_many_there_are(run: Run) -> None:
    x = np.random.default_rng(2).integers(-(2**31), 2**31, 5001).astype(np.int32)
    folded = {reduce(xor, run("roof_read", N=5001, B=b, x=x).y.tolist()) for b in (1, 2, 9, 64)}
    assert folded == {reduce(xor, x.tolist())}
