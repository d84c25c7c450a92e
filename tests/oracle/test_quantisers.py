"""Activation quantisers: known values, the reference's own route, idempotence and group edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.formats import decode, round_to
from oracle.quantisers import (
    FP8_FLOOR,
    dequantise,
    fake_quantise_fp4,
    fake_quantise_fp8,
    quantise_fp4,
    quantise_fp8,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def reference_exponent(amax):
    """The reference's float32 route: amax * fl(1/448), its exponent, plus one for any mantissa."""
    product = np.asarray(amax, np.float32) * np.float32(1.0 / 448.0)
    bits = product.view(np.uint32)
    return (bits >> 23).astype(np.int64) - 127 + ((bits & 0x7FFFFF) != 0)


def test_known_fp8_groups():
    # K4. 1.0 <= 448 * 2^-8 = 1.75, so s = 2^-8; 0.3 * 256 = 76.8 -> 80 -> 0.3125.
    x = [1.0, 0.3, -0.7, 0.01, -0.0004, 0.9, 0.123]
    y = [1.0, 0.3125, -0.6875, 0.009765625, -0.000396728515625, 0.875, 0.125]
    assert fake_quantise_fp8(x, 64).tolist() == y
    assert quantise_fp8(x, 64)[1].tolist() == [-8]
    assert quantise_fp8([1.75, 0.2], 64)[1].tolist() == [-8]
    assert fake_quantise_fp8([1.75, 0.2], 64).tolist() == [1.75, 0.203125]


def test_known_fp4_group():
    # K5. 1.0 <= 6 * 2^-2, so s = 0.25; 0.1875 / 0.25 = 0.75 is a tie and goes up to 1.
    x = [1.0, 0.3, 0.1875, 0.4375, 0.875, 0.0625, 0.7, -0.1875]
    assert fake_quantise_fp4(x).tolist() == [1, 0.25, 0.25, 0.5, 1, 0, 0.75, -0.25]
    assert quantise_fp4(x)[1].tolist() == [-2]


def test_tiny_groups_sit_on_the_floor():
    # K4. s = 2^-22 although 448 * 2^-22 is slightly more than 1e-4; 3e-5 * 2^22 = 125.8 -> 128.
    assert quantise_fp8([3e-5, -1e-4], 2)[1].tolist() == [-22]
    assert fake_quantise_fp8([3e-5, 0.0], 2).tolist() == [3.0517578125e-5, 0.0]
    codes, k = quantise_fp8(np.zeros((2, 128)), 64)
    assert not codes.any() and (k == -22).all()
    codes, k = quantise_fp4(np.zeros(32))
    assert not codes.any() and k.tolist() == [-126]


def test_float32_and_float64_floors_give_the_same_scale():
    assert np.float64(1e-4) != FP8_FLOOR
    for floor in (FP8_FLOOR, 1e-4):
        assert 448 * 2.0**-23 < floor <= 448 * 2.0**-22


def test_every_bf16_maximum_gets_the_exponent_of_the_reference():
    raw = np.arange(1 << 15, dtype=np.uint16)
    amax = decode(raw, "bf16")
    amax = amax[np.isfinite(amax) & (amax > 1e-4)]
    assert np.array_equal(quantise_fp8(amax[:, None], 1)[1][:, 0], reference_exponent(amax))


def test_float32_neighbours_of_every_boundary_get_the_exponent_of_the_reference():
    edge = np.ldexp(np.float32(448), np.arange(-21, 100)).astype(np.float32)
    up, down = np.nextafter(edge, np.float32(np.inf)), np.nextafter(edge, np.float32(0))
    for amax in (down, edge, up):
        assert np.array_equal(quantise_fp8(amax[:, None], 1)[1][:, 0], reference_exponent(amax))


@pytest.mark.parametrize(("group", "width"), [(64, 448), (128, 256), (128, 200), (64, 1)])
def test_fp8_equals_plain_loops_with_a_partial_last_group(group, width):
    x = round_to(normal(3, width) * np.exp2(normal(3, 1, seed=1) * 4), "bf16")
    codes, k = quantise_fp8(x, group)
    for row in range(3):
        for g, start in enumerate(range(0, width, group)):
            lanes = x[row, start : start + group]
            amax = max(max(abs(v) for v in lanes), FP8_FLOOR)
            exponent = -60
            while amax > 448 * 2.0**exponent:
                exponent += 1
            assert k[row, g] == exponent
            expected = round_to(lanes / 2.0**exponent, "e4m3")
            assert np.array_equal(decode(codes[row, start : start + group], "e4m3"), expected)


def test_last_partial_group_is_scaled_by_its_own_maximum():
    x = np.r_[np.full(64, 1000.0), np.full(3, 0.001)]
    codes, k = quantise_fp8(x, 64)
    assert k.tolist() == [2, -18]
    assert np.abs(dequantise(codes, k, 64, "e4m3")[64:] - 0.001).max() < 0.001 / 16


def test_a_group_never_borrows_the_scale_of_its_neighbour():
    x = normal(4, 256) * np.exp2(np.arange(4) * 3)[:, None]
    codes, k = quantise_fp8(x, 128)
    for row in range(4):
        for half in (slice(0, 128), slice(128, 256)):
            alone, own = quantise_fp8(x[row, half], 128)
            assert np.array_equal(codes[row, half], alone)
            assert k[row, half.start // 128] == own[0]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-30, 60))
def test_quantising_twice_changes_nothing_and_the_result_is_exact_in_bf16(seed, power):
    x = round_to(np.ldexp(normal(2, 128, seed=seed), power), "bf16")
    for fake in (lambda v: fake_quantise_fp8(v, 64), fake_quantise_fp4):
        once = fake(x)
        assert np.array_equal(fake(once), once)
        assert np.array_equal(round_to(once, "bf16"), once)


def test_clamp_only_is_the_identity_under_power_of_two_scales():
    x = round_to(normal(5, 192) * 30, "bf16")
    assert np.array_equal(fake_quantise_fp8(x, 64, clamp_only=True), x)
    assert np.array_equal(fake_quantise_fp4(x, clamp_only=True), x)
    assert not np.array_equal(fake_quantise_fp8(x, 64), x)


def test_canonical_zero_drops_the_sign_of_zero_and_nothing_else():
    x = np.array([1.0, -1e-9, -0.0, -0.5])
    plain, _ = quantise_fp8(x, 4)
    canonical, _ = quantise_fp8(x, 4, canonical_zero=True)
    assert plain.tolist() == [0x78, 0x80, 0x80, 0xF0]  # 256 = 2^8 is 0x78, -128 is 0xF0
    assert canonical.tolist() == [0x78, 0x00, 0x00, 0xF0]
    assert quantise_fp4(x)[0].tolist() == [6, 8, 8, 12]
    assert quantise_fp4(x, canonical_zero=True)[0].tolist() == [6, 0, 0, 12]


def test_codes_and_exponents_are_integers_of_the_promised_kind():
    codes, k = quantise_fp8(normal(2, 3, 256), 128)
    assert (codes.dtype, codes.shape, k.dtype, k.shape) == (
        np.uint8,
        (2, 3, 256),
        np.int32,
        (2, 3, 2),
    )
    codes, k = quantise_fp4(normal(2, 3, 128))
    assert (codes.dtype, codes.shape, k.dtype, k.shape) == (
        np.uint8,
        (2, 3, 128),
        np.int32,
        (2, 3, 4),
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_have_no_scale(bad):
    with pytest.raises(ValueError, match="finite positive"):
        quantise_fp8([1.0, bad], 2)
    with pytest.raises(ValueError, match="finite positive"):
        fake_quantise_fp4([1.0, bad])
