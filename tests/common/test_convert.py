"""Conversions give the oracle's codes, whatever instructions a device has for them."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime.device import open_device
from dsv4.runtime.host import build
from dsv4.runtime.nvrtc import compile_cubin
from oracle.formats import encode

SOURCE = Path(__file__).with_name("convert.cu")
THREADS = 128


def on_host(x: np.ndarray) -> np.ndarray:
    y = np.empty(x.size, np.uint8)
    grid = (x.size // THREADS, 1, 1)
    build(SOURCE, defines={}).launch(
        "map_f32_to_e4m3", grid=grid, block=(THREADS, 1, 1), args=[x, y]
    )
    return y


def on_gpu(x: np.ndarray) -> np.ndarray:
    import cupy

    cubin = compile_cubin(SOURCE, defines={}, arch=open_device("cuda").arch)
    function = cupy.RawModule(path=str(cubin.path)).get_function("map_f32_to_e4m3")
    given, y = cupy.asarray(x), cupy.empty(x.size, np.uint8)
    function((x.size // THREADS,), (THREADS,), (given, y))
    return np.asarray(y.get())


@pytest.mark.parametrize(
    "run", [on_host, pytest.param(on_gpu, marks=pytest.mark.gpu)], ids=["host", "gpu"]
)
def test_e4m3_is_the_oracles(run) -> None:
    # Every sign, exponent and first five bits of a mantissa (codes keep three), with what follows
    # them below, at and above each tie.
    heads = np.arange(1 << 14, dtype=np.uint32) << np.uint32(18)
    tails = np.array([0, 1, (1 << 18) - 1], np.uint32)
    bits = (heads[:, None] | tails).reshape(-1)
    bits = np.resize(bits, -(-bits.size // THREADS) * THREADS)
    x = bits.view(np.float32)
    number = ~np.isnan(x)
    got = run(x)
    assert np.array_equal(got[number], encode(x[number], "e4m3"))
    sign = (bits[~number] >> 24 & 0x80).astype(np.uint8)
    assert np.array_equal(got[~number], sign | np.uint8(0x7F))
