"""Triton kernels of products with FP8 codes; importing this needs Triton."""

import triton
import triton.language as tl


def dot_format(device: str) -> tl.dtype:
    """What tensor cores multiply: bf16; the interpreter on a CPU knows products of float32 only."""
    return tl.float32 if device == "cpu" else tl.bfloat16


@triton.jit
def one_row(
    codes, scales, x, y, N, K,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """y[split, n]: one row of x times BLOCK_N rows of codes, over one part of K."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < N
    part = K // SPLIT
    begin = tl.program_id(1) * part
    width = (K + 127) // 128
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for at in range(0, part, BLOCK_K):
        k = begin + at + tl.arange(0, BLOCK_K)
        where = n[:, None].to(tl.int64) * K + k[None, :]
        w = tl.load(codes + where, mask=inside[:, None], other=0.0).to(tl.float32)
        # Rows of a block share their blocks of scales.
        scale = tl.load(scales + tl.program_id(0) * BLOCK_N // 128 * width + k // 128)
        v = tl.load(x + k).to(tl.float32)
        sums += w * (scale * v)[None, :]
    total = tl.sum(sums, axis=1)
    tl.store(y + tl.program_id(1) * N + n, total, mask=inside)


@triton.jit
def few_rows(
    codes, scales, x, y, M, N, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """y[split, m, n]: a few rows of x times BLOCK_N rows of codes, over one part of K."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    inside = n < N
    part = K // SPLIT
    begin = tl.program_id(1) * part
    width = (K + 127) // 128
    sums = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for at in range(0, part, 128):
        k = begin + at + tl.arange(0, 128)
        where = n[:, None].to(tl.int64) * K + k[None, :]
        w = tl.load(codes + where, mask=inside[:, None], other=0.0).to(DOT)
        v = tl.load(x + m[None, :] * K + k[:, None], mask=m[None, :] < M, other=0.0).to(DOT)
        scale = tl.load(scales + n // 128 * width + (begin + at) // 128, mask=inside, other=0.0)
        sums += tl.dot(w, v) * scale[:, None]
    to = y + (tl.program_id(1) * M + m[None, :]) * N + n[:, None]
    tl.store(to, sums, mask=inside[:, None] & (m[None, :] < M))


@triton.jit
def sum_parts(parts, y, count, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """y[i]: the sum of the parts, in ascending order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * count + i, mask=i < count, other=0.0)
    tl.store(y + i, total, mask=i < count)
