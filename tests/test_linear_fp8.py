"""FP8 products: by hand, in plain loops, code by code, and byte for byte as the bf16 ones."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.blocks import decode_fp8_block
from oracle.formats import decode, encode
from oracle.linear_fp8 import linear_fp8

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("linear_fp8")
test_contract_grouped = contract_tests("linear_fp8_grouped")
test_contract_linear_fp8_grouped_bf16 = contract_tests("linear_fp8_grouped_bf16")
test_speed = speed_tests("linear_fp8")
test_speed_grouped = speed_tests("linear_fp8_grouped")
test_speed_linear_fp8_grouped_bf16 = speed_tests("linear_fp8_grouped_bf16")

FINITE = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
SHAPES = [(5, 16), (37, 1040), (130, 4112), (2051, 528)]


def weights(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes and power-of-two scales whose product bf16 holds exactly."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-20, 4, (-(-n // 128), -(-k // 128)))
    return rng.choice(FINITE, (n, k)), np.exp2(exponents).astype(np.float32)


def test_one_row_by_hand(run: Run) -> None:
    # Codes 0x38 = 1, 0x40 = 2, 0xbc = -1.5, 0x01 = 2^-9; scale 1/4; x = 8, 4, 2, 512, then zeros:
    # 8 + 8 - 3 + 1 = 14, a quarter of it 3.5; magnitudes 8 + 8 + 3 + 1 = 20, a quarter 5.
    codes = np.zeros((1, 16), np.uint8)
    codes[0, :4] = [0x38, 0x40, 0xBC, 0x01]
    scales = np.array([[0.25]], np.float32)
    x = np.zeros((1, 16))
    x[0, :4] = [8, 4, 2, 512]
    value, magnitude = linear_fp8(codes, scales, x)
    assert (value.item(), magnitude.item()) == (3.5, 5.0)
    got = run("linear_fp8", M=1, N=1, K=16, codes=codes, scales=scales, x=encode(x, "bf16"))
    assert got.y.item() == 3.5


def test_oracle_agrees_with_plain_loops_over_partial_blocks() -> None:
    codes, scales = weights(130, 144, seed=1)
    x = np.random.default_rng(2).standard_normal((2, 144))
    value, magnitude = linear_fp8(codes, scales, x)
    table = decode(np.arange(256, dtype=np.uint8), "e4m3")
    for m in range(2):
        for n in (0, 1, 127, 128, 129):
            terms = [
                table[codes[n, k]] * float(scales[n // 128, k // 128]) * x[m, k] for k in range(144)
            ]
            assert value[m, n] == pytest.approx(sum(terms), rel=1e-13, abs=1e-12)
            assert magnitude[m, n] == pytest.approx(sum(abs(t) for t in terms), rel=1e-13)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("rows", range(1, 9))
def test_bytes_equal_the_bf16_product_of_the_dequantised_weights(
    n: int, k: int, rows: int, run: Run
) -> None:
    codes, scales = weights(n, k, seed=rows)
    w = encode(decode_fp8_block(codes, scales), "bf16")
    assert np.array_equal(decode(w, "bf16"), decode_fp8_block(codes, scales))
    x = encode(np.random.default_rng(3).standard_normal((rows, k)), "bf16")
    got = run("linear_fp8", M=rows, N=n, K=k, codes=codes, scales=scales, x=x).y
    assert got.tobytes() == run("linear_bf16", M=rows, N=n, K=k, w=w, x=x).y.tobytes()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_has_the_same_bytes_alone_and_among_eight(n: int, k: int, run: Run) -> None:
    codes, scales = weights(n, k, seed=9)
    scales *= np.float32(1.7)
    x = encode(np.random.default_rng(4).standard_normal((8, k)), "bf16")
    fixed = dict(N=n, K=k, codes=codes, scales=scales)
    alone = np.concatenate([run("linear_fp8", M=1, x=x[m : m + 1], **fixed).y for m in range(8)])
    for rows in range(2, 9):
        got = run("linear_fp8", M=rows, x=x[:rows], **fixed).y
        assert got.tobytes() == alone[:rows].tobytes()


# 0.3 and 1.75 are what a cut to a power of two would lose; 2^-130 makes subnormal weights, and
# 2^100 weights that a decode by a large constant would push to infinity.
@pytest.mark.parametrize("scale", [1.0, 1.75, 0.3, 2.0**-20, 8.0, 1000.0, 2.0**-130, 2.0**100])
def test_every_finite_code_times_its_scale_is_rounded_once(scale: float, run: Run) -> None:
    codes = np.zeros((254, 16), np.uint8)
    codes[:, 5] = FINITE
    x = np.zeros((1, 16), np.uint16)
    x[0, 5] = 0x3F80
    scales = np.full((2, 1), scale, np.float32)
    got = run("linear_fp8", M=1, N=254, K=16, codes=codes, scales=scales, x=x).y
    wanted = decode(FINITE, "e4m3") * float(np.float32(scale))
    assert np.array_equal(got[0], wanted.astype(np.float32).astype(np.float64))


def test_the_scale_of_a_block_reaches_its_block_and_no_other(run: Run) -> None:
    # Rows 0..127 and 128..149, columns 0..127, 128..255 and 256..271: six blocks, six scales.
    scales = np.array([[1, 2, 4], [8, 16, 32]], np.float32)
    codes = np.full((150, 272), 0x38, np.uint8)
    for column, block in [(0, 0), (127, 0), (128, 1), (255, 1), (256, 2), (271, 2)]:
        x = np.zeros((1, 272), np.uint16)
        x[0, column] = 0x3F80
        got = run("linear_fp8", M=1, N=150, K=272, codes=codes, scales=scales, x=x).y[0]
        assert (got[:128] == scales[0, block]).all()
        assert (got[128:] == scales[1, block]).all()


def test_doubling_the_scales_doubles_the_result(run: Run) -> None:
    codes, scales = weights(40, 272, seed=5)
    x = encode(np.random.default_rng(6).standard_normal((3, 272)), "bf16")
    fixed = dict(M=3, N=40, K=272, codes=codes, x=x)
    once = run("linear_fp8", scales=scales, **fixed).y
    assert np.array_equal(run("linear_fp8", scales=2 * scales, **fixed).y, 2 * once)


@pytest.mark.parametrize("rows", [1, 5])
def test_a_group_has_the_bytes_of_a_product_of_its_own(rows: int, run: Run) -> None:
    codes, scales = weights(3 * 128, 400, seed=8)
    x = encode(np.random.default_rng(9).standard_normal((rows, 3 * 400)), "bf16")
    fixed = dict(M=rows, K=400)
    got = run("linear_fp8_grouped", N=384, codes=codes, scales=scales, x=x, group=128, **fixed).y
    for g in range(3):
        part, columns = slice(g * 128, (g + 1) * 128), slice(g * 400, (g + 1) * 400)
        own = np.ascontiguousarray(x[:, columns])
        alone = run(
            "linear_fp8", N=128, codes=codes[part], scales=scales[g : g + 1], x=own, **fixed
        ).y
        assert alone.tobytes() == np.ascontiguousarray(got[:, part]).tobytes()


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_code_makes_its_own_row_nan(code: int, run: Run) -> None:
    codes, _ = weights(9, 32, seed=7)
    codes[4, 17] = code
    got = run("linear_fp8", M=2, N=9, K=32, codes=codes, scales=1.0).y
    assert np.isnan(got[:, 4]).all()
    assert np.isfinite(np.delete(got, 4, axis=1)).all()


@pytest.mark.parametrize(
    ("rows", "columns", "reason"), [(9, 16, "8 rows"), (1, 24, "16 consecutive")]
)
def test_sizes_the_walk_cannot_take_are_refused(
    rows: int, columns: int, reason: str, run: Run
) -> None:
    with pytest.raises(LaunchError, match=reason):
        run("linear_fp8", M=rows, N=3, K=columns, scales=1.0)
