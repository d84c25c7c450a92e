"""Counts of specials, and what tells an unwritten element from one that equals the poison."""

import numpy as np
import pytest

from dsv4.spec import FORMATS as STORED
from lab.compare.census import POISON_BYTES, Census, census, holds, unwritten
from oracle.formats import FORMATS, decode


def test_each_kind_is_counted_once():
    x = np.array(
        [np.nan, np.inf, -np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-39, 1.0, -3.4028234664e38]
    )
    x[-1] = -FORMATS["f32"].max
    assert census(x, "f32") == Census(1, 1, 2, 2, 1, 1)


def test_every_e4m3_code_has_its_place_in_the_census():
    values = decode(np.arange(256, dtype=np.uint8), "e4m3")
    assert census(values, "e4m3") == Census(
        nan=2, plus_inf=0, minus_inf=0, subnormal=14, minus_zero=1, saturated=2
    )


def test_scales_have_no_subnormals_and_integers_no_census():
    assert census(decode(np.arange(255, dtype=np.uint8), "ue8m0"), "ue8m0").subnormal == 0
    assert census(np.zeros(3), "i32") == Census()


def test_the_two_poisons_never_look_alike():
    assert POISON_BYTES[0] != POISON_BYTES[1]


@pytest.mark.parametrize("fmt", ["f64", "f32", "f16", "bf16", "e4m3", "ue8m0"])
def test_the_first_poison_is_a_nan_wherever_there_is_one(fmt):
    storage = FORMATS[fmt].storage
    poisoned = np.full(storage.itemsize, POISON_BYTES[0], np.uint8).view(storage)
    assert np.isnan(decode(poisoned, fmt)).all()


@pytest.mark.parametrize("fmt", STORED)
def test_unwritten_means_both_patterns_and_not_one(fmt):
    storage = np.dtype(STORED[fmt].storage)

    def filled(byte):
        return np.full((2, 3 * storage.itemsize), byte, np.uint8).view(storage)

    first, second = filled(POISON_BYTES[0]), filled(POISON_BYTES[1])
    first[0, 1] = second[0, 1] = storage.type(1)  # written
    second[1, 2] = first[1, 2]  # written, with a value that equals the first poison
    expected = np.ones((2, 3), bool)
    expected[0, 1] = expected[1, 2] = False
    assert np.array_equal(unwritten(first, second), expected)
    assert holds(first, POISON_BYTES[0])[1, 2]
