"""Dequantisation: known bytes, plain loops, every code under every scale, what bf16 cannot hold."""

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import Dsv4Error
from lab.testing import contract_tests, speed_tests
from oracle.dequant import dequant_fp8_block, dequant_mxfp4, dequant_nvfp4, dequant_ue8m0
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_fp8_block_contract = contract_tests("dequant_fp8_block")
test_mxfp4_contract = contract_tests("dequant_mxfp4")
test_nvfp4_contract = contract_tests("dequant_nvfp4")
test_ue8m0_contract = contract_tests("dequant_ue8m0")
test_fp8_block_speed = speed_tests("dequant_fp8_block")
test_mxfp4_speed = speed_tests("dequant_mxfp4")
test_nvfp4_speed = speed_tests("dequant_nvfp4")
test_ue8m0_speed = speed_tests("dequant_ue8m0")

ZERO = np.zeros(1, np.int64)
EVERY_BYTE = np.arange(256, dtype=np.uint8)
GRID = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


def codes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def bytes_of(value: int, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.uint8)


# ------------------------------------------------------------------ the twins, in plain loops


def e4m3(code: int) -> Fraction | None:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return None
    size = Fraction(8 * (exponent > 0) + mantissa) * Fraction(2) ** (max(exponent, 1) - 10)
    return -size if code & 128 else size


def ue8m0(code: int) -> Fraction | None:
    return None if code == 255 else Fraction(2) ** (code - 127)


def e2m1(packed: np.ndarray, row: int, column: int) -> Fraction:
    code = int(packed[row, column // 2]) >> 4 * (column % 2) & 15
    return -GRID[code & 7] if code & 8 else GRID[code & 7]


def fits_bf16(value: Fraction | None) -> bool:
    """Whether a bf16 has this value: 8 significant bits, steps of 2^-133 at least, below 2^128."""
    if value is None or abs(value) >= 2**128:
        return False
    steps = abs(value) * 2**133
    if steps.denominator != 1:
        return False
    whole = steps.numerator
    while whole and whole % 2 == 0:
        whole //= 2
    return whole < 256


def assert_is(outputs: dict[str, np.ndarray], expected: list[list[Fraction | None]]) -> None:
    flat = [v for row in expected for v in row]
    got = outputs["y"].reshape(-1).tolist()
    assert all(
        np.isnan(g) if v is None else Fraction(g) == v for g, v in zip(got, flat, strict=True)
    )
    assert outputs["inexact"].tolist() == [sum(not fits_bf16(v) for v in flat)]


def test_fp8_block_oracle_agrees_with_plain_loops() -> None:
    codes, scales = codes_of(130, 131), np.array([[0, 250], [255, 120]], np.uint8)
    expected = []
    for n in range(130):
        row = []
        for k in range(131):
            code, scale = e4m3(int(codes[n, k])), ue8m0(int(scales[n // 128, k // 128]))
            row.append(None if code is None or scale is None else code * scale)
        expected.append(row)
    assert_is(dequant_fp8_block(codes, scales, ZERO), expected)


def test_mxfp4_oracle_agrees_with_plain_loops() -> None:
    codes, scales = codes_of(64, 32), codes_of(64, 2, seed=1)
    scales[0] = [0, 255]
    expected = []
    for n in range(64):
        scale = [ue8m0(int(s)) for s in scales[n]]
        row = [s if (s := scale[k // 32]) is None else e2m1(codes, n, k) * s for k in range(64)]
        expected.append(row)
    assert_is(dequant_mxfp4(codes, scales, ZERO), expected)


@pytest.mark.parametrize("scale2", [2.0**-12, 1.37e-4, 2.0**-140, 3e37])
def test_nvfp4_oracle_agrees_with_plain_loops(scale2: float) -> None:
    codes, scales = codes_of(32, 16), codes_of(32, 2, seed=1)
    second = np.array([scale2], np.float32).astype(np.float64)
    expected = []
    for n in range(32):
        scale = [e4m3(int(s)) for s in scales[n]]
        row = [
            s if (s := scale[k // 16]) is None else e2m1(codes, n, k) * s * Fraction(second[0])
            for k in range(32)
        ]
        expected.append(row)
    assert_is(dequant_nvfp4(codes, scales, second, ZERO), expected)


# ------------------------------------------------------------------ known bytes


def test_known_e4m3_bytes_under_scale_one(run: Run) -> None:
    codes = np.array([[0x00, 0x01, 0x07, 0x08, 0x38, 0x3C, 0x50, 0x7E, 0x81, 0xB8, 0xFE]], np.uint8)
    known = [0, 2**-9, 0.013671875, 0.015625, 1, 1.5, 8, 448, -(2**-9), -1, -448]
    scales = bytes_of(127, 1, 1)
    assert dequant_fp8_block(codes, scales, ZERO)["y"].tolist() == [known]
    assert run(
        "dequant_fp8_block", N=1, K=11, codes=codes, scales=scales, inexact=0
    ).y.tolist() == [known]


def test_known_mxfp4_byte_has_its_even_element_in_the_low_nibble(run: Run) -> None:
    # 0x2B: low nibble 0xB is -1.5, high nibble 0x2 is 1; scale byte 0x79 is 2^-6.
    codes, scales = bytes_of(0x2B, 1, 16), bytes_of(0x79, 1, 1)
    known = [-0.0234375, 0.015625] * 16
    assert dequant_mxfp4(codes, scales, ZERO)["y"].tolist() == [known]
    assert run("dequant_mxfp4", N=1, K=32, codes=codes, scales=scales, inexact=0).y.tolist() == [
        known
    ]


def test_known_nvfp4_scale_equals_the_mxfp4_scale_of_the_same_power(run: Run) -> None:
    # 0x50 is 8; 8 * 2^-12 = 2^-9 = scale byte 118.
    codes = codes_of(3, 16)
    common = dict(N=3, K=32, codes=codes, inexact=0)
    nv = run("dequant_nvfp4", scales=bytes_of(0x50, 3, 2), scale2=2.0**-12, **common)
    mx = run("dequant_mxfp4", scales=bytes_of(118, 3, 1), **common)
    assert np.array_equal(nv.y, mx.y)


def test_scale_bytes_are_powers_and_not_numbers(run: Run) -> None:
    y = run("dequant_ue8m0", N=256, codes=EVERY_BYTE).y
    assert y[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert np.isnan(y[255])
    assert np.array_equal(dequant_ue8m0(EVERY_BYTE), y, equal_nan=True)
    codes = bytes_of(0x38, 5, 7)  # 1.0
    got = run("dequant_fp8_block", N=5, K=7, codes=codes, scales=bytes_of(120, 1, 1), inexact=0).y
    assert (got == 2.0**-7).all()


# ------------------------------------------------------------------ what must stay true


def test_fp8_loses_nothing_from_scale_byte_3_to_246_and_something_beyond(run: Run) -> None:
    codes = np.delete(EVERY_BYTE, [127, 255])[None]

    def lost(byte: int) -> int:
        scales = bytes_of(byte, 1, 2)
        got = run("dequant_fp8_block", N=1, K=254, codes=codes, scales=scales, inexact=0)
        return int(got.inexact[0])

    assert not any(lost(byte) for byte in range(3, 247))
    assert all(lost(byte) for byte in (0, 1, 2, 247, 254, 255))


def test_mxfp4_loses_nothing_up_to_scale_byte_252(run: Run) -> None:
    codes = np.tile(EVERY_BYTE[:16] * 17, (1, 1))  # every nibble, in both places
    for byte in range(256):
        scales = bytes_of(byte, 1, 1)
        got = run("dequant_mxfp4", N=1, K=32, codes=codes, scales=scales, inexact=0)
        assert bool(got.inexact[0]) == (byte > 252), byte


def test_nvfp4_loses_nothing_under_a_power_of_two(run: Run) -> None:
    codes = np.tile(EVERY_BYTE, (256, 1))
    scales = np.where(np.isin(EVERY_BYTE, [127, 255]), 0, EVERY_BYTE).astype(np.uint8)
    scales = np.tile(scales[:, None], (1, 32))
    for exponent in (-115, -12, 0, 116):
        got = run(
            "dequant_nvfp4", N=256, K=512, codes=codes, scales=scales,
            scale2=2.0**exponent, inexact=17,
        )  # fmt: skip
        assert got.inexact.tolist() == [17], exponent


def test_a_calibrated_scale2_is_counted_and_still_rounded_once(run: Run) -> None:
    # 1.5 times this scale lies half a float32 spacing below a bf16 tie: rounding through float32
    # would reach the tie and go up to the even code.
    scale2 = 1.0 + 152917 * 2.0**-23
    codes, scales = bytes_of(0x33, 1, 8), bytes_of(0x38, 1, 1)
    through_f32 = encode(np.float64(np.float32(1.5) * np.float32(scale2)), "bf16")
    got = run("dequant_nvfp4", N=1, K=16, codes=codes, scales=scales, scale2=scale2, inexact=0)
    assert (encode(got.y, "bf16") == encode(1.5 * scale2, "bf16")).all()
    assert (encode(got.y, "bf16") != through_f32).all()
    assert got.inexact.tolist() == [16]


def test_swapped_nibbles_are_seen(run: Run) -> None:
    codes, scales = codes_of(4, 32), bytes_of(127, 4, 2)
    swapped = (codes >> 4) | (codes << 4)
    common = dict(N=4, K=64, scales=scales, inexact=0)
    straight = run("dequant_mxfp4", codes=codes, **common).y
    crossed = run("dequant_mxfp4", codes=swapped.astype(np.uint8), **common).y
    assert np.array_equal(straight[:, 0::2], crossed[:, 1::2])
    assert not np.array_equal(straight, crossed)


def test_a_transposed_scale_grid_is_refused(run: Run) -> None:
    with pytest.raises(Dsv4Error, match="scales"):
        run("dequant_fp8_block", N=300, K=100, scales=bytes_of(127, 1, 3), inexact=0)


def test_columns_that_are_no_whole_groups_are_refused(run: Run) -> None:
    with pytest.raises(Dsv4Error):
        run("dequant_mxfp4", N=1, K=48, inexact=0)
