"""Scalar formats: every code both ways, every tie, and random values against a plain search."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.formats import FORMATS, NAN_ORDER, decode, encode, order, round_to, spacing

SMALL = ("e4m3", "e2m1", "bf16", "f16")  # every code can be listed


def all_codes(fmt):
    """Every code of a format of at most 16 bits, as stored."""
    f = FORMATS[fmt]
    return np.arange(1 << f.bits).astype(f"u{f.storage.itemsize}").view(f.storage)


def finite_codes(fmt):
    codes = all_codes(fmt)
    return codes[np.isfinite(decode(codes, fmt))]


def nearest_even(x, fmt):
    """The brute-force twin of encode for one finite value inside the range: compare with all."""
    codes = finite_codes(fmt)
    values = decode(codes, fmt)
    distance = np.abs(values - x)
    best = codes[distance == distance.min()]
    best = [c for c in best if np.signbit(decode(c, fmt)) == np.signbit(x)]
    even = [c for c in best if c.view(f"u{c.dtype.itemsize}") % 2 == 0]
    return best[0] if len(best) == 1 else even[0]


def u8(*codes):
    return np.array(codes, np.uint8)


def test_e4m3_known_codes():
    # K1. 0x07 = 7/8 * 2^-6, 0x3C = 1.5, 0x50 = 2^3, 0x7E = 1.75 * 2^8.
    codes = u8(0x00, 0x01, 0x07, 0x08, 0x38, 0x3C, 0x50, 0x7E, 0x81, 0xB8, 0xFE)
    values = [0, 2**-9, 0.013671875, 0.015625, 1, 1.5, 8, 448, -(2**-9), -1, -448]
    assert decode(codes, "e4m3").tolist() == values
    assert np.isnan(decode(u8(0x7F, 0xFF), "e4m3")).all()


def test_e4m3_known_roundings():
    # K1. 76 lies between 72 and 80: both 4 away, 80 has the even mantissa.
    x = [76, 76.8, 72, 17, 19, 2**-10, 1.5 * 2**-9]
    assert round_to(x, "e4m3").tolist() == [80, 80, 72, 16, 20, 0, 2**-8]


def test_e2m1_has_the_sixteen_documented_values():
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = decode(all_codes("e2m1"), "e2m1")
    assert values.tolist() == positive + [-v for v in positive]
    assert np.signbit(values).tolist() == [False] * 8 + [True] * 8


def test_e2m1_ties_go_to_the_even_code_and_not_to_the_smaller_magnitude():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    assert round_to(ties, "e2m1").tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert round_to(np.negative(ties), "e2m1").tolist() == [0, -1, -1, -2, -2, -4, -4]


def test_ue8m0_codes_are_exponents_and_never_numbers():
    values = decode(all_codes("ue8m0"), "ue8m0")
    assert values[120] == 2.0**-7  # copied as a number it would scale by 120
    assert values[0] == 2.0**-127  # a float32 subnormal, and not zero
    assert values[254] == 2.0**127
    assert np.isnan(values[255])
    assert values[:255].tolist() == [2.0 ** (b - 127) for b in range(255)]


@pytest.mark.parametrize("scale", [0.3, 1.75, 3.0, 0.0, -1.0, np.inf, 2.0**-128, 2.0**128])
def test_ue8m0_refuses_a_scale_it_would_have_to_cut(scale):
    with pytest.raises(ValueError, match="2\\^-127 .. 2\\^127"):
        encode([1.0, scale], "ue8m0")


@pytest.mark.parametrize("fmt", [*SMALL, "ue8m0"])
def test_every_code_survives_decode_and_encode(fmt):
    codes = all_codes(fmt)
    values = decode(codes, fmt)
    number = ~np.isnan(values)
    keep = codes if FORMATS[fmt].has_nan else codes[number]
    back = encode(decode(keep, fmt), fmt)
    assert back.dtype == FORMATS[fmt].storage
    bits = f"u{back.dtype.itemsize}"
    assert np.array_equal(back.view(bits)[number], codes.view(bits)[number])
    assert np.isnan(decode(back, fmt)[~number]).all()


@pytest.mark.parametrize("fmt", SMALL)
def test_every_tie_goes_to_the_even_code(fmt):
    values = np.unique(np.abs(decode(finite_codes(fmt), fmt)))
    middle = (values[:-1] + values[1:]) / 2
    below, above = encode(values[:-1], fmt), encode(values[1:], fmt)
    even = np.where(order(below, fmt) % 2 == 0, order(below, fmt), order(above, fmt))
    assert np.array_equal(order(encode(middle, fmt), fmt), even)
    assert np.array_equal(order(encode(-middle, fmt), fmt), -even)
    # One float64 step to either side of the tie decides it.
    assert np.array_equal(encode(np.nextafter(middle, 0), fmt), below)
    assert np.array_equal(encode(np.nextafter(middle, np.inf), fmt), above)


@pytest.mark.parametrize("fmt", SMALL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_encode_equals_a_search_over_all_codes(fmt, data):
    top = FORMATS[fmt].max
    narrow = st.floats(-top, top, width=32 if fmt != "bf16" else 64)
    wide = st.floats(-8 * FORMATS[fmt].min_normal, 8 * FORMATS[fmt].min_normal)
    x = data.draw(narrow | wide)
    assert encode(x, fmt) == nearest_even(x, fmt)


@pytest.mark.parametrize("fmt", SMALL)
def test_random_values_over_all_binades_equal_a_sorted_search(fmt):
    rng = np.random.default_rng(7)
    f = FORMATS[fmt]
    low, high = np.log2(f.min_subnormal) - 2, np.log2(f.max)
    x = np.exp2(rng.uniform(low, high, 50_000)) * rng.choice([-1, 1], 50_000)
    values = np.unique(np.abs(decode(finite_codes(fmt), fmt)))
    right = np.clip(np.searchsorted(values, np.abs(x)), 1, values.size - 1)
    gap = (np.abs(x) - values[right - 1]) - (values[right] - np.abs(x))
    index = np.where((gap > 0) | ((gap == 0) & (right % 2 == 0)), right, right - 1)
    assert np.array_equal(np.abs(order(encode(x, fmt), fmt)), index)
    assert np.array_equal(np.signbit(round_to(x, fmt)), np.signbit(x))


def test_f16_and_f32_equal_the_casts_of_numpy():
    rng = np.random.default_rng(3)
    x = np.ldexp(rng.standard_normal(200_000), rng.integers(-160, 130, 200_000))
    with np.errstate(over="ignore", under="ignore"):
        assert np.array_equal(encode(x, "f16"), x.astype("f2").view("u2"))
        assert np.array_equal(encode(x, "f32").view("u4"), x.astype("f4").view("u4"))
    codes = all_codes("f16")
    with np.errstate(invalid="ignore"):
        assert np.array_equal(decode(codes, "f16"), codes.view("f2").astype("f8"), equal_nan=True)


def test_bf16_of_every_float32_neighbourhood_equals_the_integer_rule():
    # Upper half: every finite bf16; lower half: around the tie and the ends.
    upper = np.arange(1 << 16, dtype=np.uint32)
    upper = upper[(upper & 0x7F80) != 0x7F80]
    for low in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        u = (upper << 16) | low
        rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
        assert np.array_equal(encode(u.view(np.float32), "bf16"), rounded.astype(np.uint16))


def test_float64_to_bf16_rounds_once_where_two_roundings_go_wrong():
    # 1 + 2^-8 is a bf16 tie; a float64 nudge below float32's reach decides it upwards.
    x = 1 + 2.0**-8 + 2.0**-40
    assert round_to(x, "bf16") == 1 + 2.0**-7
    assert round_to(np.float32(x), "bf16") == 1.0


@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32"])
def test_ieee_formats_overflow_to_infinity_from_the_tie_on(fmt):
    f = FORMATS[fmt]
    tie = f.max + float(spacing(f.max, fmt)) / 2
    got = round_to([np.nextafter(tie, 0), tie, -tie, 1e300, np.inf], fmt)
    assert got.tolist() == [f.max, np.inf, -np.inf, np.inf, np.inf]


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_finite_formats_clamp_before_they_round(fmt):
    top = FORMATS[fmt].max
    x = [top * 1.01, 2 * top, 1e300, np.inf, -np.inf]
    assert round_to(x, fmt).tolist() == [top, top, top, top, -top]


@pytest.mark.parametrize("fmt", [*SMALL, "f32", "f64"])
def test_zero_keeps_its_sign_and_so_does_what_rounds_to_zero(fmt):
    tiny = FORMATS[fmt].min_subnormal / 4
    assert np.signbit(round_to([0.0, -0.0, tiny, -tiny], fmt)).tolist() == [False, True] * 2


@pytest.mark.parametrize("fmt", [n for n, f in FORMATS.items() if f.has_nan])
def test_nan_stays_nan(fmt):
    assert np.isnan(round_to([np.nan, -np.nan], fmt)).all()


def test_e2m1_has_no_nan_to_offer():
    with pytest.raises(ValueError, match="NaN"):
        encode([1.0, np.nan], "e2m1")


@pytest.mark.parametrize("fmt", SMALL)
def test_order_is_monotone_with_neighbours_one_apart(fmt):
    codes = finite_codes(fmt)
    values, index = decode(codes, fmt), order(codes, fmt)
    by_value = np.argsort(values, kind="stable")
    steps = np.diff(index[by_value])
    assert steps.tolist().count(0) == 1  # -0 beside +0
    assert set(steps.tolist()) == {0, 1}
    assert np.array_equal(order(encode(values, fmt), fmt), index)


@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_order_of_wide_formats_follows_nextafter(fmt):
    kind = FORMATS[fmt].storage.type
    x = np.array([0, 1e-45, 1e-38, 1.17549435e-38, 0.999, 1, 2, 3e38], kind)
    up = np.nextafter(x, kind(np.inf))
    assert (order(up, fmt) - order(x, fmt)).tolist() == [1] * x.size
    assert (order(-x, fmt) + order(x, fmt)).tolist() == [0] * x.size


def test_order_gives_infinity_its_place_and_nan_none():
    raw = np.array([np.finfo("f4").max, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    index = order(raw, "f32")
    assert index[1] == index[0] + 1 == -index[2]
    assert index[3:].tolist() == [NAN_ORDER] * 2
    assert order(u8(0x7E, 0x7F, 0xFF, 0xFE), "e4m3").tolist() == [126, NAN_ORDER, NAN_ORDER, -126]
    assert order(u8(0, 254, 255), "ue8m0").tolist() == [0, 254, NAN_ORDER]


@pytest.mark.parametrize("fmt", SMALL)
def test_spacing_is_the_distance_to_the_neighbour_above(fmt):
    values = np.unique(np.abs(decode(finite_codes(fmt), fmt)))
    assert np.array_equal(spacing(values[:-1], fmt), np.diff(values))
    assert np.array_equal(spacing(-values[:-1], fmt), np.diff(values))
    inside = values[:-1] + np.diff(values) * 0.7
    assert np.array_equal(spacing(inside, fmt), np.diff(values))


def test_spacing_at_the_edges():
    assert spacing([0.0, 448.0, 1e9, np.inf], "e4m3").tolist() == [2**-9, 32, 32, 32]
    assert spacing([2.0**-127, 1.0, 2.0**127], "ue8m0").tolist() == [2.0**-127, 1, 2.0**127]
    assert spacing(1.0, "f64") == np.spacing(1.0)
    assert spacing(0.0, "f64") == np.nextafter(0, 1)
    assert spacing(np.float32(3e-40), "f32") == np.spacing(np.float32(0))
    assert np.isnan(spacing(np.nan, "bf16"))


@pytest.mark.parametrize("fmt", FORMATS)
def test_published_extremes_are_on_the_lattice(fmt):
    f = FORMATS[fmt]
    extremes = np.array([f.max, f.min_normal, f.min_subnormal])
    assert round_to(extremes, fmt).tolist() == extremes.tolist()
    if fmt != "ue8m0":
        assert order(encode(extremes, fmt), fmt).tolist() == [f.top - f.has_inf, 1 << f.mantissa, 1]


def test_extremes_agree_with_numpy():
    for fmt in ("f16", "f32", "f64"):
        f, info = FORMATS[fmt], np.finfo(f"f{FORMATS[fmt].bits // 8}")
        published = [f.max, f.min_normal, f.min_subnormal]
        assert published == [float(v) for v in (info.max, info.tiny, info.smallest_subnormal)]


def test_a_wrong_storage_type_is_refused_and_not_cast():
    with pytest.raises(ValueError, match="stored as uint16, found float32"):
        decode(np.ones(3, np.float32), "bf16")
    with pytest.raises(ValueError, match="stored as uint8, found uint32"):
        decode(np.array([0x3F800000], np.uint32), "ue8m0")  # float bits are no scale bytes
    with pytest.raises(ValueError, match="found 16"):
        decode(u8(16), "e2m1")
    with pytest.raises(ValueError, match="known: f64"):
        encode(1.0, "bfloat16")


def test_signalling_nans_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw = np.array([0x7F800001, 0x7FC00000], np.uint32).view(np.float32)
        assert np.isnan(decode(raw, "f32")).all()
        assert np.isnan(decode(np.array([0x7F81], np.uint16), "bf16")).all()
        assert np.isnan(decode(np.array([0x7C01], np.uint16), "f16")).all()


def test_scalars_and_empty_arrays_keep_their_shape():
    for fmt in FORMATS:
        assert decode(encode(1.0, fmt), fmt).shape == ()
        assert decode(encode(np.zeros((0, 3)), fmt), fmt).shape == (0, 3)
