"""Block-scaled weights: known bytes, plain loops, range ends, and mistakes others made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.blocks import (
    decode_fp8_block,
    decode_mxfp4,
    decode_nvfp4,
    encode_fp8_block,
    encode_mxfp4,
    encode_nvfp4,
    pack_e2m1,
    smallest_exponent,
    unpack_e2m1,
)
from oracle.formats import decode, encode, round_to

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_known_mxfp4_byte_holds_the_even_element_in_its_low_nibble():
    # K2. 0x2B: low nibble 0xB = -1.5, high nibble 0x2 = 1; scale byte 0x79 = 2^-6.
    packed = np.full((1, 16), 0x2B, np.uint8)
    w = decode_mxfp4(packed, np.array([[0x79]], np.uint8))
    assert w[0, :2].tolist() == [-0.0234375, 0.015625]


def test_known_nvfp4_scale_equals_the_mxfp4_scale_of_the_same_power():
    # K3. 0x50 = 8, times 2^-12 = 2^-9 = ue8m0 byte 118.
    packed = np.arange(16, dtype=np.uint8)[None] * 16 + 5
    nv = decode_nvfp4(packed, np.full((1, 2), 0x50, np.uint8), 2.0**-12)
    mx = decode_mxfp4(packed, np.full((1, 1), 118, np.uint8))
    assert np.array_equal(nv, mx)


def test_nibbles_survive_packing_and_swapping_them_is_seen():
    every_byte = np.arange(256, dtype=np.uint8)
    codes = unpack_e2m1(every_byte)
    assert codes[0::2].tolist() == [b % 16 for b in range(256)]
    assert codes[1::2].tolist() == [b // 16 for b in range(256)]
    assert np.array_equal(pack_e2m1(codes), every_byte)
    swapped = (every_byte >> 4) | (every_byte << 4)
    assert not np.array_equal(unpack_e2m1(swapped), codes)


def test_packing_halves_only_the_last_axis():
    codes = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4) % 16
    packed = pack_e2m1(codes)
    assert packed.shape == (2, 3, 2)
    assert packed[1, 2].tolist() == [4 | 5 << 4, 6 | 7 << 4]  # codes 20..23 modulo 16


def test_all_scale_bytes_times_all_codes():
    # Every ue8m0 byte (0 is 2^-127, 255 is NaN) against every e2m1 code.
    packed = pack_e2m1(np.tile(np.arange(16, dtype=np.uint8), (256, 2)))
    w = decode_mxfp4(packed, np.arange(256, dtype=np.uint8)[:, None])
    for byte in range(255):
        expected = [v * 2.0 ** (byte - 127) for v in E2M1] * 2
        assert w[byte].tolist() == expected
    assert np.isnan(w[255]).all()


def test_scale_byte_120_is_a_power_and_not_the_number_120():
    codes = np.full((1, 1), 0x38, np.uint8)  # 1.0
    assert decode_fp8_block(codes, np.array([[120]], np.uint8)) == 2.0**-7


@pytest.mark.parametrize("scale", [0.3, 1.75, 2.0**-7 * 1.0001])
def test_scales_with_mantissa_bits_are_used_whole(scale):
    codes = np.full((3, 5), 0x3C, np.uint8)  # 1.5
    scales = np.array([[scale]], np.float32)
    assert np.array_equal(
        decode_fp8_block(codes, scales), np.full((3, 5), 1.5 * np.float64(np.float32(scale)))
    )


def test_float_scale_bits_are_not_read_as_scale_bytes():
    bits = np.array([[0.5]], np.float32).view(np.uint32)
    with pytest.raises(ValueError, match="ue8m0 is stored as uint8, found uint32"):
        decode_fp8_block(np.zeros((4, 4), np.uint8), bits)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (128, 128), (129, 127), (5, 300), (256, 130)])
def test_fp8_decode_equals_plain_loops_with_partial_last_blocks(rows, cols):
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 0x7F, (rows, cols), dtype=np.uint8)
    scales = rng.integers(100, 140, (-(-rows // 128), -(-cols // 128)), dtype=np.uint8)
    w = decode_fp8_block(codes, scales)
    for n in range(0, rows, 7):
        for k in range(cols):
            exponent = int(scales[n // 128, k // 128]) - 127
            assert w[n, k] == decode(codes[n, k], "e4m3") * 2.0**exponent


def test_distinct_scales_on_both_axes_are_not_transposed():
    scales = np.array([[127, 128, 129], [130, 131, 132]], np.uint8)
    w = decode_fp8_block(np.full((256, 384), 0x38, np.uint8), scales)
    assert w[::128, ::128].tolist() == [[1, 2, 4], [8, 16, 32]]
    with pytest.raises(ValueError, match="want \\(2, 3\\)"):
        decode_fp8_block(np.zeros((256, 384), np.uint8), scales.T)


@pytest.mark.parametrize("encode_decode", ["fp8", "mxfp4", "nvfp4"])
def test_encoded_weights_decode_to_their_nearest_on_the_chosen_grid(encode_decode):
    w = normal(96, 160) * 0.02
    if encode_decode == "fp8":
        codes, scales = encode_fp8_block(w)
        back = decode_fp8_block(codes, scales)
        step = np.ldexp(1.0, scales.astype(int) - 127).repeat(128, 0)[:96].repeat(128, 1)[:, :160]
        expected = round_to(w / step, "e4m3") * step
    elif encode_decode == "mxfp4":
        packed, scales = encode_mxfp4(w)
        back = decode_mxfp4(packed, scales)
        step = np.ldexp(1.0, scales.astype(int) - 127).repeat(32, -1)
        expected = round_to(w / step, "e2m1") * step
    else:
        packed, scales, scale2 = encode_nvfp4(w)
        back = decode_nvfp4(packed, scales, scale2)
        step = decode(scales, "e4m3").repeat(16, -1) * np.float64(scale2)
        expected = round_to(w / step, "e2m1") * step
    assert np.array_equal(back, expected)
    assert 0 < np.abs(back - w).max() < np.abs(w).max() / 4


@pytest.mark.parametrize("power", [-120, -3, 0, 100])
def test_weights_already_on_the_grid_come_back_unchanged(power):
    # E2M1 magnitudes with a 6 in each group fix the scale; the power must survive at range ends.
    w = np.ldexp(np.tile(E2M1, (3, 4)), power)
    assert np.array_equal(decode_mxfp4(*encode_mxfp4(w)), w)
    assert np.array_equal(decode_nvfp4(*encode_nvfp4(w)), w)


def test_small_weights_do_not_vanish_when_blocks_differ_by_many_powers():
    w = np.ones((256, 256))
    w[:128, :128] *= 2.0**-100
    w[128:, 128:] *= 2.0**60
    assert np.array_equal(decode_fp8_block(*encode_fp8_block(w)), w)
    assert np.array_equal(decode_mxfp4(*encode_mxfp4(w)), w)


def test_zero_blocks_have_a_harmless_scale():
    codes, scales = encode_fp8_block(np.zeros((3, 130)))
    assert not codes.any() and scales.tolist() == [[127, 127]]
    packed, scales = encode_mxfp4(np.zeros((2, 32)))
    assert not packed.any() and scales.tolist() == [[127], [127]]
    packed, scales, scale2 = encode_nvfp4(np.zeros((2, 16)))
    assert not packed.any() and not scales.any() and scale2 > 0


def test_nvfp4_takes_a_given_scale2_with_mantissa_bits():
    w = normal(4, 64)
    packed, scales, scale2 = encode_nvfp4(w, scale2=0.00123)
    assert scale2 == np.float32(0.00123)
    back = decode_nvfp4(packed, scales, scale2)
    assert np.abs(back - w).max() < 0.2 * np.abs(w).max()


def test_every_e4m3_scale_times_every_e2m1_code_is_exact_in_bf16():
    products = np.multiply.outer(decode(np.arange(0x7F, dtype=np.uint8), "e4m3"), E2M1)
    assert np.array_equal(round_to(products, "bf16"), products)
    assert np.unique(np.abs(products)).size == 238


def test_e4m3_weights_are_exact_in_bf16_for_scale_bytes_3_to_246():
    values = decode(np.arange(0x7F, dtype=np.uint8), "e4m3")

    def exact(byte):
        w = np.ldexp(values, byte - 127)
        return np.array_equal(round_to(w, "bf16"), w)

    assert [byte for byte in range(255) if exact(byte)] == list(range(3, 247))


@settings(max_examples=200, deadline=None)
@given(
    amax=st.floats(1e-300, 1e300),
    largest=st.sampled_from([448.0, 6.0, 2688.0, 1.0]),
)
def test_smallest_exponent_covers_and_one_less_does_not(amax, largest):
    k = int(smallest_exponent(amax, largest))
    assert amax <= np.ldexp(largest, k)
    assert amax > np.ldexp(largest, k - 1)


@pytest.mark.parametrize("largest", [448.0, 6.0])
def test_smallest_exponent_is_right_one_float_away_from_the_boundary(largest):
    edge = np.ldexp(largest, np.arange(-140, 120))
    k = np.arange(-140, 120)
    assert np.array_equal(smallest_exponent(edge, largest), k)
    assert np.array_equal(smallest_exponent(np.nextafter(edge, np.inf), largest), k + 1)
    assert np.array_equal(smallest_exponent(np.nextafter(edge, 0), largest), k)


@pytest.mark.parametrize("amax", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_needs_a_finite_positive_maximum(amax):
    with pytest.raises(ValueError, match="finite positive"):
        smallest_exponent(amax, 448.0)


def test_wrong_shapes_and_types_are_refused():
    packed = np.zeros((2, 16), np.uint8)
    with pytest.raises(ValueError, match="want \\(2, 1\\), one per 32"):
        decode_mxfp4(packed, np.zeros((1, 2), np.uint8))
    with pytest.raises(ValueError, match="view int8 as uint8"):
        decode_mxfp4(packed.view(np.int8), np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="even last axis"):
        pack_e2m1(np.zeros((2, 3), np.uint8))
    with pytest.raises(ValueError, match="codes 0..15"):
        pack_e2m1(np.full((2, 2), 16, np.uint8))
    with pytest.raises(ValueError, match="do not divide by 32"):
        encode_mxfp4(np.zeros((2, 48)))
    with pytest.raises(ValueError, match="finite, positive"):
        encode_nvfp4(np.ones((1, 16)), scale2=0.0)


def test_nvfp4_scale2_is_the_stored_float32():
    packed, scales = np.full((1, 8), 0x22, np.uint8), np.full((1, 1), 0x38, np.uint8)
    assert decode_nvfp4(packed, scales, 0.1)[0, 0] == np.float64(np.float32(0.1))
    assert encode([1.0], "e4m3")[0] == 0x38
