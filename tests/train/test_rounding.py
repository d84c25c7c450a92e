"""What training rounds to is what a release stores and the kernels compute with."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.blocks import decode_fp8_block, decode_mxfp4, encode_fp8_block, encode_mxfp4
from oracle.formats import decode, round_to
from oracle.quantisers import fake_quantise_fp4, fake_quantise_fp8

torch = pytest.importorskip("torch", reason="training needs torch: pip install dsv4-lab[train]")

from tools.train import rounding  # noqa: E402

TYPES = [torch.float32, torch.float64]


def spread(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """float32 numbers of many magnitudes, with zeros, ties and powers of two among them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-12, 12, shape))
    x[rng.random(shape) < 0.1] = 0.0
    steps = np.round(rng.normal(size=shape) * 8) / 4
    return np.where(rng.random(shape) < 0.3, steps, x).astype(np.float32)


@pytest.mark.parametrize("real", TYPES)
def test_every_bf16_activation_gets_the_oracles_codes(real: torch.dtype) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = decode(bits, "bf16")
    small = values[np.isfinite(values) & (np.abs(values) < 1e30)]
    x = np.resize(np.random.default_rng(1).permutation(small), (512, 128))
    for ours, theirs, group in (
        (rounding.fp8_groups, fake_quantise_fp8, 128),
        (rounding.fp8_groups, fake_quantise_fp8, 64),
        (rounding.fp4_groups, fake_quantise_fp4, 32),
    ):
        got = ours(torch.from_numpy(x).to(real), group)
        assert np.array_equal(got.double().numpy(), theirs(x, group))


@pytest.mark.parametrize("real", TYPES)
def test_groups_of_any_magnitudes_get_the_oracles_codes(real: torch.dtype) -> None:
    x = spread((64, 256))
    got = rounding.fp8_groups(torch.from_numpy(x).to(real), 128)
    assert np.array_equal(got.double().numpy(), fake_quantise_fp8(x, 128))
    got = rounding.fp4_groups(torch.from_numpy(x).to(real), 32)
    assert np.array_equal(got.double().numpy(), fake_quantise_fp4(x, 32))


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (130, 257), (1, 1)])
def test_fp8_matrices_are_what_their_codes_decode_to(shape: tuple[int, int]) -> None:
    w = spread(shape, 2)
    want = decode_fp8_block(*encode_fp8_block(w))
    for real in TYPES:
        got = rounding.fp8_weights(torch.from_numpy(w).to(real))
        assert np.array_equal(got.double().numpy(), want)


def test_blocks_of_zeros_stay_zeros() -> None:
    assert not rounding.fp8_weights(torch.zeros(128, 256)).any()
    assert not rounding.fp4_weights(torch.zeros(3, 2, 64)).any()


def test_fp4_matrices_are_what_their_codes_decode_to() -> None:
    w = spread((3, 8, 96), 3)
    want = decode_mxfp4(*encode_mxfp4(w))
    for real in TYPES:
        got = rounding.fp4_weights(torch.from_numpy(w).to(real))
        assert np.array_equal(got.double().numpy(), want)


def test_bf16_rounds_once_from_either_type() -> None:
    x = spread((4096,), 4).astype(np.float64)
    # Just above the middle of two bf16 numbers: float32 on the way would make it a tie.
    x[0] = 1.0 + 2.0**-8 + 2.0**-40
    assert float(rounding.to_bf16(torch.tensor([x[0]]).double())) == 1.0 + 2.0**-7
    got = rounding.to_bf16(torch.from_numpy(x))
    assert np.array_equal(got.numpy(), round_to(x, "bf16"))
    got = rounding.to_bf16(torch.from_numpy(x.astype(np.float32)))
    assert np.array_equal(got.double().numpy(), round_to(x.astype(np.float32), "bf16"))


def test_gradients_pass_straight_through() -> None:
    x = torch.from_numpy(spread((4, 128), 5)).requires_grad_()
    gradient = torch.from_numpy(spread((4, 128), 6))
    rounding.through(x, rounding.fp8_groups, 128).backward(gradient)
    assert torch.equal(x.grad, gradient)
