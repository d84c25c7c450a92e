"""Pairs, lattice distances and histograms: what counts as near, per format."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import SpecError
from lab.compare.pair import INTEGERS, pair
from lab.compare.ulp import (
    BUCKETS,
    bucket_of,
    by_magnitude,
    histogram,
    lattice,
    ulp_max,
    unit_roundoff,
)
from oracle.blocks import pack_e2m1
from oracle.formats import FORMATS, decode, encode, order

FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e2m1")


def paired(got, ref, fmt="f32", axes=("N",)):
    """A pair from float64 values on both sides."""
    return pair(encode(got, fmt), np.asarray(ref, np.float64), fmt, axes)


def from_order(index, fmt):
    """Stored codes at these lattice indices."""
    f = FORMATS[fmt]
    index = np.asarray(index, np.int64)
    bits = np.abs(index) | ((index < 0).astype(np.int64) << (f.bits - 1))
    return bits.astype(f"u{f.storage.itemsize}").view(f.storage)


EDGES = {
    0: "0", 1: "1", 2: "2", 3: "3-4", 4: "3-4", 5: "5-8", 8: "5-8", 9: "9-16", 16: "9-16",
    17: "17-64", 64: "17-64", 65: "65-1024", 1024: "65-1024", 1025: ">1024",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fmt", "steps"),
    [(f, n) for f in FLOATS for n in EDGES if n < FORMATS[f].top - FORMATS[f].has_inf],
)
def test_every_bucket_starts_and_ends_where_its_name_says(fmt, steps):
    bucket = EDGES[steps]
    ref, got = from_order([1], fmt), from_order([1 + steps], fmt)
    both = pair(got, decode(ref, fmt), fmt, ("N",))
    assert int(lattice(both, np.array([True]))[0]) == steps == ulp_max(both)
    counts = histogram(bucket_of(both))
    assert counts == {name: int(name == bucket) for name in BUCKETS}


def test_steps_are_counted_across_binades_and_through_zero():
    # 1.0 to 2.0 is 2^7 bf16 steps; -min to +min passes zero: 2 steps, and a sign.
    assert ulp_max(paired([2.0], [1.0], "bf16")) == 128
    tiny = FORMATS["bf16"].min_subnormal
    both = paired([-tiny], [tiny], "bf16")
    assert ulp_max(both) == 2
    assert histogram(bucket_of(both))["sign"] == 1


def test_zero_of_the_other_sign_is_no_step_away_but_other_bytes():
    both = paired([-0.0], [0.0])
    assert ulp_max(both) == 0
    assert histogram(bucket_of(both))["0"] == 1
    assert both.differ.all()


def test_specials_have_buckets_of_their_own():
    nan, inf = np.nan, np.inf
    got = [nan, 1.0, nan, inf, inf, -inf, 1.0, nan, 0.0]
    ref = [nan, nan, 1.0, inf, 1.0, inf, inf, inf, inf]
    counts = histogram(bucket_of(paired(got, ref)))
    assert counts == {n: {"0": 2, "nan": 3, "inf": 4}.get(n, 0) for n in BUCKETS}


def test_any_two_nans_are_equal_whatever_their_payload():
    raw = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    both = pair(raw, np.full(3, np.nan), "f32", ("N",))
    assert not both.differ.any() and not both.special.any()
    codes = pair(np.array([0x7F, 0xFF], np.uint8), np.full(2, np.nan), "e4m3", ("N",))
    assert not codes.differ.any()


def test_the_law_of_specials():
    nan, inf = np.nan, np.inf
    got = [nan, 1.0, nan, inf, inf, -inf, 1.0, 1.0]
    ref = [nan, nan, 1.0, inf, 1.0, inf, inf, 2.0]
    assert paired(got, ref).special.tolist() == [False, True, True, False, True, True, True, False]


def test_a_reference_beyond_the_largest_number_demands_infinity_or_saturation():
    over = float(FORMATS["bf16"].max) * 1.01
    assert not paired([np.inf], [over], "bf16").differ.any()
    assert paired([FORMATS["bf16"].max], [over], "bf16").special.all()
    saturated = paired([448.0, -448.0], [1000.0, -np.inf], "e4m3")
    assert not saturated.differ.any()
    assert saturated.real.tolist() == [0.0, 0.0]


def test_extreme_float64_distances_do_not_wrap():
    top = FORMATS["f64"].max
    both = paired([top], [-top], "f64")
    assert ulp_max(both) == 2 * (FORMATS["f64"].top - 1)


@pytest.mark.parametrize("fmt", INTEGERS)
def test_integers_are_one_apart(fmt):
    info = np.iinfo(INTEGERS[fmt])
    got = np.array([info.max, info.min, 5], INTEGERS[fmt])
    ref = np.array([info.min, info.min, 3], np.int64)
    both = pair(got, ref, fmt, ("N",))
    assert lattice(both, np.ones(3, bool)).tolist() == [info.max - info.min, 0, 2]
    assert both.differ.tolist() == [True, False, True]


def test_i64_neighbours_that_float64_cannot_tell_apart_still_differ():
    ref = np.array([2**62], np.int64)
    both = pair(ref + 1, ref, "i64", ("N",))
    assert both.differ.all() and ulp_max(both) == 1


def test_packed_codes_are_compared_element_by_element_with_named_columns():
    ref = np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.uint8)
    got = ref.copy()
    got[1, 2] = 15
    both = pair(pack_e2m1(got), pack_e2m1(ref), "e2m1x2", ("N", "K/2"))
    assert (both.fmt, both.axes, both.shape) == ("e2m1", ("N", "K"), (2, 4))
    assert np.argwhere(both.differ).tolist() == [[1, 2]]
    by_value = pair(pack_e2m1(got), decode(ref, "e2m1"), "e2m1x2", ("N", "J"))
    assert by_value.axes == ("N", "2*J")
    assert np.array_equal(by_value.differ, both.differ)


def test_stored_codes_serve_as_reference_too():
    codes = np.arange(0x7F, dtype=np.uint8)
    assert not pair(codes, codes, "e4m3", ("N",)).differ.any()
    bits = np.arange(0, 0x7F80, 7, dtype=np.uint16)
    assert not pair(bits, bits, "bf16", ("N",)).differ.any()


def test_octaves_separate_cancellation_from_error_everywhere():
    ref = np.array([1.0, 0.9, 0.5, 0.25, 0.0, 2.0**-60])
    got = ref.copy()
    got[3] = 0.25 + 2.0**-25
    both = paired(got, ref)
    assert by_magnitude(both, bucket_of(both)) == {
        "0": {"0": 1},  # 1.0 is alone in its octave: [1, 2)
        "-1": {"0": 2},
        "-2": {"1": 1},
        "<=-40": {"0": 1},
        "zero": {"0": 1},
    }


def test_misfits_are_refused_with_both_shapes():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(SpecError, match=r"got \[2, 3\], reference \[3, 2\]"):
        pair(x, np.zeros((3, 2)), "f32", ("T", "D"))
    with pytest.raises(SpecError, match="axes T"):
        pair(x, np.zeros((2, 3)), "f32", ("T",))
    with pytest.raises(SpecError, match="stored as uint16, got float32"):
        pair(x, np.zeros((2, 3)), "bf16", ("T", "D"))
    with pytest.raises(SpecError, match="no format 'fp8'"):
        pair(x, np.zeros((2, 3)), "fp8", ("T", "D"))
    with pytest.raises(SpecError, match="no i32 numbers"):
        pair(np.zeros(1, np.int32), np.array([0.5]), "i32", ("N",))
    with pytest.raises(SpecError, match="no u8 numbers"):
        pair(np.zeros(1, np.uint8), np.array([256]), "u8", ("N",))
    with pytest.raises(SpecError, match="stored as int32, got int64"):
        pair(np.zeros(1, np.int64), np.zeros(1), "i32", ("N",))


def test_unit_roundoffs_are_half_a_spacing_at_one():
    assert unit_roundoff("f32") == 2.0**-24
    assert unit_roundoff("f64") == 2.0**-53
    assert unit_roundoff("bf16") == 2.0**-8


@settings(max_examples=100, deadline=None)
@given(data=st.data(), fmt=st.sampled_from(["f32", "f16", "bf16", "e4m3", "e2m1"]))
def test_moving_codes_by_k_is_found_as_k_steps(data, fmt):
    top = FORMATS[fmt].top - FORMATS[fmt].has_inf
    a = data.draw(st.lists(st.integers(-top, top), min_size=1, max_size=20))
    b = data.draw(st.lists(st.integers(-top, top), min_size=len(a), max_size=len(a)))
    ref, got = from_order(a, fmt), from_order(b, fmt)
    both = pair(got, decode(ref, fmt), fmt, ("N",))
    everywhere = np.ones(len(a), bool)
    assert lattice(both, everywhere).tolist() == [abs(x - y) for x, y in zip(a, b, strict=True)]
    assert np.array_equal(order(ref, fmt), np.array(a))
    counts = histogram(bucket_of(both))
    assert sum(counts.values()) == len(a)
    assert counts["sign"] == sum(x * y < 0 for x, y in zip(a, b, strict=True))


@settings(max_examples=100, deadline=None)
@given(
    fmt=st.sampled_from(FLOATS),
    x=st.lists(st.floats(-6, 6, allow_subnormal=True), min_size=1, max_size=30),
)
def test_correct_rounding_is_at_most_half_a_spacing_and_no_step_away(fmt, x):
    both = paired(x, x, fmt)
    assert not both.differ.any()
    assert ulp_max(both) == 0
    assert both.real.max() <= 0.5
