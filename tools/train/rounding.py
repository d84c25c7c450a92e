"""The number formats of a release as torch functions: what is trained is what is exported.

Scales are powers of two found from exponent and mantissa bits, never from a logarithm, so that
codes are those of `oracle.blocks` and `oracle.quantisers` for every float32 and float64 input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

FP8_LARGEST = 448.0
FP4_LARGEST = 6.0
FP8_FLOOR = 9.999999747378752e-05  # the kernels' float32 constant 1e-4
FP4_FLOOR = 6.0 * 2.0**-126
BLOCK = 128
GROUP = 32


class _Straight(torch.autograd.Function):
    """Rounds on the way forward and hands the gradient through unchanged."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, rounded: Callable[..., torch.Tensor], settings: tuple[int, ...]
    ) -> torch.Tensor:
        return rounded(x, *settings)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0], None, None


def through(x: torch.Tensor, rounded: Callable[..., torch.Tensor], *settings: int) -> torch.Tensor:
    """The rounded x, with the gradient of x: a straight-through estimator."""
    return _Straight.apply(x, rounded, settings)


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """x as the nearest bf16 numbers, ties to even, in the type of x.

    Rounds: once, from float64 too.
    """
    if x.dtype == torch.float64:
        return _to_grid(x, 8, -133)
    return x.to(torch.bfloat16).to(x.dtype)


def fp8_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """Activations after FP8 quantise and dequantise, one scale for each group of lanes.

    Shapes: [..,K] with K a multiple of the group.
    """
    parts = x.unflatten(-1, (-1, group))
    amax = parts.abs().amax(-1, keepdim=True).clamp_min(FP8_FLOOR)
    return _scaled(parts, covering(amax, FP8_LARGEST), to_e4m3).flatten(-2)


def fp4_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """Activations after FP4 quantise and dequantise.  Shapes: as `fp8_groups`."""
    parts = x.unflatten(-1, (-1, group))
    amax = parts.abs().amax(-1, keepdim=True).clamp_min(FP4_FLOOR)
    return _scaled(parts, covering(amax, FP4_LARGEST), to_e2m1).flatten(-2)


def fp8_weights(w: torch.Tensor) -> torch.Tensor:
    """A matrix after FP8 in blocks of 128 x 128, edges partial.  Shapes: [N,K]."""
    exponents = fp8_exponents(w).repeat_interleave(BLOCK, 0)[: w.shape[0]]
    return _scaled(w, exponents.repeat_interleave(BLOCK, 1)[:, : w.shape[1]], to_e4m3)


def fp4_weights(w: torch.Tensor) -> torch.Tensor:
    """Matrices after MXFP4, a scale for each 32 columns.  Shapes: [..,K]."""
    parts = w.unflatten(-1, (-1, GROUP))
    return _scaled(parts, fp4_exponents(w)[..., None], to_e2m1).flatten(-2)


def fp8_exponents(w: torch.Tensor) -> torch.Tensor:
    """The exponent of each block's scale, which just covers its largest weight.

    Shapes: [N,K] -> [ceil(N/128),ceil(K/128)] of integers; a block of zeros has exponent 0.
    """
    rows, columns = (-(-n // BLOCK) for n in w.shape)
    padded = torch.nn.functional.pad(
        w.abs(), (0, columns * BLOCK - w.shape[1], 0, rows * BLOCK - w.shape[0])
    )
    amax = padded.reshape(rows, BLOCK, columns, BLOCK).amax((1, 3))
    return covering(torch.where(amax == 0, FP8_LARGEST, amax), FP8_LARGEST)


def fp4_exponents(w: torch.Tensor) -> torch.Tensor:
    """The exponent of each group's scale.  Shapes: [..,K] -> [..,K/32]."""
    amax = w.unflatten(-1, (-1, GROUP)).abs().amax(-1)
    return covering(torch.where(amax == 0, FP4_LARGEST, amax), FP4_LARGEST)


def covering(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """The smallest integers k with amax <= largest * 2^k, exactly.

    `largest` is mantissa times a power of two; a normal amax is compared by the same two parts.
    """
    mantissa, exponent = torch.frexp(amax)
    most, top = math.frexp(largest)
    return exponent - top + (mantissa > most).to(exponent.dtype)


def power_of_two(exponents: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """2 to the exponents, from bits, in the type of `like`; exponents of normal numbers only."""
    if like.dtype == torch.float64:
        return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """x as the nearest E4M3 numbers, ties to even; |x| is at most 448."""
    return _to_grid(x, 4, -9)


def to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """x as the nearest E2M1 numbers, ties to even; |x| is at most 6."""
    return _to_grid(x, 2, -1)


def _to_grid(x: torch.Tensor, bits: int, least: int) -> torch.Tensor:
    """x to so many significant bits, with steps of 2^least at the smallest."""
    _, exponent = torch.frexp(x)
    step = power_of_two((exponent - bits).clamp_min(least), x)
    return torch.round(x / step) * step


def _scaled(
    x: torch.Tensor, exponents: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The rounded x / scale, times the scale; both steps are exact but for the rounding."""
    scale = power_of_two(exponents, x)
    return rounded(x / scale) * scale
