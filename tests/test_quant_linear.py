"""Products with weights in blocks: by hand, against the encoders, and row by row."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.drafters.quant import decode, encode
from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests

Run = Callable[..., SimpleNamespace]

test_q8_contract = contract_tests("quant_linear_q8")
test_q4_contract = contract_tests("quant_linear_q4")
test_q8_speed = speed_tests("quant_linear_q8")
test_q4_speed = speed_tests("quant_linear_q4")

KERNELS = {"q8_0": "quant_linear_q8", "q4_0": "quant_linear_q4"}


def test_one_block_of_nibbles_by_hand(run: Run) -> None:
    # Low nibbles 9 are ones for elements 0..15, high nibbles 7 minus ones for the rest.
    codes = np.full((1, 16), 0x79, np.uint8)
    x = np.concatenate([np.full(16, 3.0), np.full(16, 1.0)]).astype(np.float32)[None]
    half = np.full((1, 1), 0x3800, np.uint16)
    got = run("quant_linear_q4", T=1, N=1, K=32, x=x, codes=codes, scales=half).y
    assert got.tolist() == [[16.0]]


def test_one_block_of_bytes_by_hand(run: Run) -> None:
    codes = np.zeros((1, 32), np.int8)
    codes[0, :2] = (127, -127)
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = (2, 1)
    half = np.full((1, 1), 0x3C00, np.uint16)
    got = run("quant_linear_q8", T=1, N=1, K=32, x=x, codes=codes.view(np.uint8), scales=half).y
    assert got.tolist() == [[127.0]]


@pytest.mark.parametrize("fmt", KERNELS)
def test_the_kernel_reads_what_the_encoder_writes(fmt: str, run: Run) -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(s).astype(np.float32) for s in ((11, 96), (3, 96)))
    blocks = encode(w, fmt)
    got = run(KERNELS[fmt], T=3, N=11, K=96, x=x, codes=blocks.codes, scales=blocks.scales).y
    wanted = x.astype(float) @ decode(blocks).astype(float).T
    assert np.abs(got - wanted).max() < 1e-5


@pytest.mark.parametrize("kernel", KERNELS.values())
def test_a_row_gives_the_same_bytes_alone_and_among_others(kernel: str, run: Run) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, 64)).astype(np.float32)
    codes = rng.integers(0, 256, (5, 64 if kernel.endswith("8") else 32)).astype(np.uint8)
    w = dict(N=5, K=64, codes=codes, scales=0.01)
    together = run(kernel, T=9, x=x, **w).y
    for t in range(9):
        assert run(kernel, T=1, x=x[t : t + 1], **w).y[0].tobytes() == together[t].tobytes()


def test_rows_that_blocks_do_not_fill_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="blocks of 32"):
        run("quant_linear_q8", T=1, N=1, K=48, scales=1.0)
