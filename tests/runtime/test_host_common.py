"""The shared device headers on the host backend, and their compilation for CUDA."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.errors import DeviceError
from dsv4.runtime import nvrtc
from dsv4.runtime.host import build
from dsv4.runtime.probes import stage_number

KERNELS = Path(__file__).parent / "kernels"
MODES = ("run", "shuffle", "check")


def butterfly(lanes: np.ndarray) -> np.ndarray:
    """The sum of the last axis of 32 in the order that the header promises."""
    for width in (16, 8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [32, 96, 1024])
@pytest.mark.parametrize(
    ("symbol", "dtype"),
    [
        ("float_reductions", np.float32),
        ("double_reductions", np.float64),
        ("integer_reductions", np.int32),
    ],
)
def test_reductions_give_the_bits_of_the_promised_order(
    mode: str, threads: int, symbol: str, dtype: type
) -> None:
    x = (np.random.default_rng(threads).standard_normal((2, threads)) * 1000).astype(dtype)
    out = np.zeros((2, threads, 4), dtype)
    build(KERNELS / "reductions.cu", defines={}, mode=mode).launch(
        symbol, grid=(2, 1, 1), block=(threads, 1, 1), args=[x, out], seed=7
    )
    warps = x.reshape(2, -1, 32)
    partial = np.zeros((2, 32), dtype)
    partial[:, : threads // 32] = butterfly(warps)
    answers = [
        butterfly(warps).repeat(32, axis=1),
        warps.max(axis=2).repeat(32, axis=1),
        np.broadcast_to(butterfly(partial)[:, None], x.shape),
        np.broadcast_to(x.max(axis=1)[:, None], x.shape),
    ]
    np.testing.assert_array_equal(out, np.stack(answers, axis=2))


@pytest.mark.parametrize("mode", MODES)
def test_argmax_ties_go_to_the_lowest_index_and_nan_never_wins(mode: str) -> None:
    x = np.full((4, 96), -3.0, np.float32)
    x[0, [40, 70, 71]] = 5.0
    x[1] = np.nan
    x[1, 90] = -np.inf
    x[2] = np.nan
    x[3, 10], x[3, 20] = -0.0, 0.0
    out, index = np.zeros((4, 96, 2), np.float32), np.zeros((4, 96, 2), np.int32)
    build(KERNELS / "reductions.cu", defines={}, mode=mode).launch(
        "argmax_reductions", grid=(4, 1, 1), block=(96, 1, 1), args=[x, out, index], seed=8
    )
    assert (index[..., 1] == np.array([40, 90, 0, 10])[:, None]).all()
    np.testing.assert_array_equal(
        out[..., 1], np.repeat([[5.0], [-np.inf], [np.nan], [0.0]], 96, axis=1)
    )
    assert index[0, ::32, 0].tolist() == [0, 40, 70]
    assert index[1, ::32, 0].tolist() == [0, 32, 90]


def test_largest_of_a_block_of_nan_is_nan() -> None:
    x = np.full((2, 96), np.nan, np.float32)
    x[1, 5] = -7.0
    out = np.zeros((2, 96, 4), np.float32)
    build(KERNELS / "reductions.cu", defines={}).launch(
        "float_reductions", grid=(2, 1, 1), block=(96, 1, 1), args=[x, out]
    )
    assert np.isnan(out[0, :, 3]).all() and (out[1, :, 3] == -7.0).all()


@pytest.mark.parametrize("mode", MODES)
def test_threads_of_a_planar_block_count_x_first(mode: str) -> None:
    x = np.random.default_rng(9).standard_normal(128).astype(np.float32)
    out = np.zeros(128, np.float32)
    build(KERNELS / "reductions.cu", defines={}, mode=mode).launch(
        "planar_sum", grid=(1, 1, 1), block=(16, 8, 1), args=[x, out]
    )
    partial = np.zeros(32, np.float32)
    partial[:4] = butterfly(x.reshape(4, 32))
    assert (out == butterfly(partial)).all()


def bf16_bits(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cp_async", ["eager", "deferred"])
def test_tensor_core_tiles_agree_with_a_float64_product(mode: str, cp_async: str) -> None:
    rng = np.random.default_rng(10)
    a, b = bf16_bits(rng.standard_normal((32, 80))), bf16_bits(rng.standard_normal((80, 24)))
    c = np.full((32, 24), np.nan, np.float32)
    build(KERNELS / "tensor.cu", defines={}, mode=mode, cp_async=cp_async).launch(
        "tile_of_rows",
        grid=(3, 2, 1),
        block=(32, 1, 1),
        args=[a, b, c, np.int32(24), np.int32(80)],
        seed=11,
    )
    np.testing.assert_allclose(c, from_bf16(a) @ from_bf16(b), rtol=0, atol=5e-6)


@pytest.mark.parametrize("mode", MODES)
def test_transposed_matrix_loads_undo_a_transposed_layout(mode: str) -> None:
    rng = np.random.default_rng(12)
    a, b = bf16_bits(rng.standard_normal((16, 16))), bf16_bits(rng.standard_normal((16, 8)))
    c = np.full((16, 8), np.nan, np.float32)
    build(KERNELS / "tensor.cu", defines={}, mode=mode).launch(
        "tile_of_columns",
        grid=(1, 1, 1),
        block=(32, 1, 1),
        args=[np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), c],
    )
    np.testing.assert_allclose(c, from_bf16(a) @ from_bf16(b), rtol=0, atol=2e-6)


def test_exact_exponential_is_within_a_little_more_than_one_ulp() -> None:
    # Every 997th float of the range, both signs: 2.2 million values.
    positive = np.arange(0, 0x42B17218, 997, dtype=np.uint32).view(np.float32)
    negative = np.arange(0x80000000, 0xC2D00000, 997, dtype=np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 88.8, -104.0], np.float32)
    x = np.concatenate([positive, negative, special])
    y = np.empty_like(x)
    build(KERNELS / "intrinsics.cu", defines={}).launch(
        "exact_exponential",
        grid=(x.size // 256 + 1, 1, 1),
        block=(256, 1, 1),
        args=[x, y, np.int64(x.size)],
    )
    np.testing.assert_array_equal(y[-5:], [np.nan, np.inf, 0.0, np.inf, 0.0])
    exact = np.exp(x[:-5].astype(np.float64))
    below = exact.astype(np.float32)
    below = np.where(below > exact, np.nextafter(below, np.float32(0)), below)
    error_ulp = np.abs(y[:-5] - exact) / np.spacing(below)
    assert error_ulp.max() < 1.2


def test_probes_record_stage_index_and_value() -> None:
    module = build(KERNELS / "probed.cu", defines={"LAB_PROBE": 1}, mode="shuffle")
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    y = np.zeros(64, np.float32)
    records, met = module.launch_probed(
        "doubled", capacity=100, grid=(1, 1, 1), block=(64, 1, 1), args=[x, y], seed=3
    )
    assert met == 64
    assert (records["stage"] == stage_number("doubled")).all()
    np.testing.assert_array_equal(records["index"], np.arange(64))
    np.testing.assert_array_equal(records["value"], 2 * x)
    records, met = module.launch_probed(
        "doubled", capacity=10, grid=(1, 1, 1), block=(64, 1, 1), args=[x, y]
    )
    assert len(records) == 10 and met == 64


def cubin_or_skip(source: Path, arch: str, **defines: int) -> bytes:
    try:
        return nvrtc.compile_cubin(source, defines=defines, arch=arch).path.read_bytes()
    except DeviceError as error:
        pytest.skip(f"NVRTC is not here: {str(error).splitlines()[0]}")


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize(
    "name",
    [
        "atomics",
        "collectives",
        "correct",
        "intrinsics",
        "probed",
        "reductions",
        "shared_kinds",
        "tensor",
    ],
)
def test_the_same_kernels_compile_for_cuda(name: str, arch: str) -> None:
    assert cubin_or_skip(KERNELS / f"{name}.cu", arch)


@pytest.mark.parametrize("name", ["types", "math", "reduce", "mma", "copy", "probe", "convert"])
def test_a_common_header_needs_no_other_include_before_it(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}_alone.cu"
    source.write_text(
        f'#include "common/{name}.cuh"\nextern "C" __global__ void alone(int* x) {{ x[0] = 1; }}\n'
    )
    assert build(source, defines={}).symbols == ("alone",)
    assert cubin_or_skip(source, "sm_90a")


def test_a_product_build_carries_no_trace_of_probes() -> None:
    silent = cubin_or_skip(KERNELS / "probed.cu", "sm_90a")
    probed = cubin_or_skip(KERNELS / "probed.cu", "sm_90a", LAB_PROBE=1)
    assert b"lab_probe" in probed and b"lab_probe" not in silent
