"""The small operators of the model: norms, rotation, Hadamard, products by kind."""

from __future__ import annotations

import torch

from dsv4.checkpoint.config import ModelConfig
from dsv4.rope_table import Yarn, rope_table
from tools.train.laws import Law


def product(x: torch.Tensor, w: torch.Tensor, law: Law) -> torch.Tensor:
    """x times an FP8 or bf16 matrix.  Shapes: x [..,K], w [N,K] -> [..,N]."""
    return (law.product_input(x).to(law.compute) @ w.mT).to(law.real)


def island(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x times a matrix in the type of the streams, nothing rounded.  Shapes: as `product`."""
    return x @ w.mT


def norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """x over the root of its mean square, times the gain."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def head_norm(q: torch.Tensor, eps: float) -> torch.Tensor:
    """Every head over the root of its mean square."""
    return q * torch.rsqrt(q.square().mean(-1, keepdim=True) + eps)


def rotate(x: torch.Tensor, turns: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """x with its last lanes rotated in pairs (2i, 2i+1).

    Shapes: x [..,K], turns [..,R] of (cos, sin) pairs that broadcast against x without its lanes.
    """
    width = turns.shape[-1]
    cosine, sine = turns[..., 0::2], turns[..., 1::2]
    if inverse:
        sine = -sine
    pairs = x[..., -width:].unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([a * cosine - b * sine, a * sine + b * cosine], dim=-1).flatten(-2)
    return torch.cat([x[..., :-width], turned], dim=-1)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The last axis through the Sylvester matrix, over the root of its width."""
    width = x.shape[-1]
    lanes, step = x, 1
    while step < width:
        halves = lanes.unflatten(-1, (-1, 2, step))
        a, b = halves[..., 0, :], halves[..., 1, :]
        lanes = torch.stack([a + b, a - b], dim=-2).flatten(-3)
        step *= 2
    return lanes * width**-0.5


def rope_tables(
    config: ModelConfig, law: Law, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(turns of window-only layers, turns of all others) for every position there is.

    Shapes: [P,R] each; the engine's own table.
    """
    c, stretched = config, None
    if c.original_seq_len:
        stretched = Yarn(c.original_seq_len, c.rope_factor, c.beta_fast, c.beta_slow)
    positions, width = c.max_seq_len + c.dspark_block_size + 1, c.rope_head_dim
    plain = rope_table(positions, width, c.rope_theta)
    slowed = rope_table(positions, width, c.compress_rope_theta, stretched)
    first, second = (torch.from_numpy(t).to(device, law.real) for t in (plain, slowed))
    return first, second
