"""Equality to the byte."""

from __future__ import annotations

import numpy as np

from lab.arrays import differing, same_bytes


def test_signs_of_zero_and_payloads_of_nan_are_bytes() -> None:
    zero, nan = np.zeros(3, np.float32), np.full(3, np.nan, np.float32)
    assert same_bytes(nan, nan.copy())
    assert not same_bytes(zero, -zero)
    other = nan.copy()
    other.view(np.uint32)[1] ^= 1
    found = differing(nan, other)
    assert found is not None and found.tolist() == [False, True, False]


def test_another_shape_or_type_is_another_array() -> None:
    x = np.zeros((2, 3), np.int32)
    assert differing(x, x.reshape(3, 2)) is None
    assert differing(x, x.view(np.float32)) is None
    assert not same_bytes(x, x.astype(np.int64))


def test_rows_with_a_stride_are_compared_as_rows() -> None:
    wide = np.arange(24, dtype=np.uint16).reshape(4, 6)
    cut = wide[:, :5]
    assert same_bytes(cut, np.ascontiguousarray(cut))
    changed = cut.copy()
    changed[2, 4] += 1
    found = differing(cut, changed)
    assert found is not None and np.argwhere(found).tolist() == [[2, 4]]


def test_integers_beyond_what_float32_holds_are_told_apart() -> None:
    assert not same_bytes(np.array([2**24]), np.array([2**24 + 1]))
    assert same_bytes(np.zeros(0, np.float64), np.zeros(0, np.float64))
