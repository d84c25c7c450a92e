"""Products with dense matrices: on FP8 codes, on bf16 rows, through the library, or unrounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.rows import Rows
from dsv4.engine.weights import DenseSlab, DenseView, WeightRef
from dsv4.kernels.act_quant import act_quant_fp8_inplace
from dsv4.kernels.cast import cast_bf16
from dsv4.kernels.dequant import dequant_fp8_block
from dsv4.kernels.island_dots import (
    island_dots,
    island_dots_bf16,
    island_dots_bf16_f32,
    island_dots_f32,
)
from dsv4.kernels.linear_bf16 import linear_bf16, linear_bf16_grouped
from dsv4.kernels.linear_fp8 import linear_fp8, linear_fp8_grouped
from dsv4.kernels.movement import movement_embed, movement_place, movement_take
from dsv4.spec import BF16, I32


def product_input(run: Rows, name: str, x: Any, *, quantised: bool = True) -> Any:
    """x [T,K] as products take it: bf16, on the FP8 grid first if the arms say so.

    Under SMOOTH it stays float32.
    """
    if run.smooth:
        return x
    width = int(x.shape[1])
    rounded = run.buffer(f"{name} bf16", width, fmt=BF16)
    run.tape.launch(cast_bf16, x.reshape(-1), out=rounded.reshape(-1))
    if quantised and run.arms.dense_input_fp8:
        # Codes are taken of bf16 numbers, and their values are bf16 numbers again.
        wide = run.buffer("input codes", width)
        run.tape.launch(movement_embed, rounded, run.workspace.counting()[: run.rows], out=wide)
        run.tape.launch(act_quant_fp8_inplace, wide, prefix=width, group=128)
        run.tape.launch(cast_bf16, wide.reshape(-1), out=rounded.reshape(-1))
    return rounded


def product(run: Rows, w: DenseSlab, x: Any, out: Any) -> Any:
    """out [T,N] = x w^T for an x that `product_input` made."""
    if run.smooth:
        run.tape.launch(island_dots_bf16, x, w.dev(), out=out)
    elif run.library:
        run.tape.gemm(staged(run, w).array, x, out)
    else:
        for first in range(0, int(x.shape[0]), VERIFY_ROWS):
            rows = slice(first, first + VERIFY_ROWS)
            _few_rows(run, w.ref, x[rows], out[rows])
    return out


def grouped_product(run: Rows, w: DenseSlab, x: Any, groups: int, out: Any) -> Any:
    """out [T,G*R]: every group of columns of x [T,G*K] times its own rows of w [G*R,K]."""
    height, width = w.rows // groups, int(x.shape[1]) // groups
    if not run.smooth and not run.library:
        rounded = product_input(run, "grouped", x, quantised=False)
        for first in range(0, run.rows, VERIFY_ROWS):
            rows = slice(first, first + VERIFY_ROWS)
            if w.ref.codes is not None:
                run.tape.launch(
                    linear_fp8_grouped, w.ref.codes, w.ref.scales, rounded[rows], out=out[rows],
                    group=height,
                )  # fmt: skip
            else:
                run.tape.launch(
                    linear_bf16_grouped, w.ref.bf16, rounded[rows], out=out[rows], group=height
                )
        return out
    whole = w.dev() if run.smooth else staged(run, w).array
    taken, made = run.buffer("group input", width), run.buffer("group output", height)
    for g in range(groups):
        run.tape.launch(movement_take, x, out=taken, offset=g * width)
        part = whole[g * height : (g + 1) * height]
        if run.smooth:
            run.tape.launch(island_dots_bf16, taken, part, out=made)
        else:
            run.tape.gemm(part, product_input(run, "group", taken, quantised=False), made)
        run.tape.launch(movement_place, made, out, offset=g * height)
    return out


def island(run: Rows, x: Any, w: Any, out: Any) -> Any:
    """out [T,N] = x w^T in float32 on both sides, w bf16 or f32; sums as the arms say."""
    single = run.arms.dots_f32
    if w.dtype == np.uint16:
        kernel = island_dots_bf16_f32 if single else island_dots_bf16
    else:
        kernel = island_dots_f32 if single else island_dots
    run.tape.launch(kernel, x, w, out=out)
    return out


def staged(run: Rows, w: DenseSlab) -> DenseView:
    """The matrix in bf16: resident, or made from its codes into the stage's scratch.

    The scratch holds one matrix; the next call overwrites it.
    """
    if w.fp8 is None:
        return DenseView(w.bf16, temporary=False)
    scratch = run.workspace.fixed("staged", scratch_elements(run), fmt=BF16)
    matrix = scratch[: w.rows * w.columns].reshape(w.rows, w.columns)
    # Codes times powers of two are exact in bf16; the count is for weights that are not.
    count = run.workspace.filled("staged inexact", 0, 1, fmt=I32)
    run.tape.launch(dequant_fp8_block, w.fp8.codes, w.fp8.scale_bytes, y=matrix, inexact=count)
    return DenseView(matrix, temporary=True)


def scratch_elements(run: Rows) -> int:
    """Elements of the largest dense matrix of a layer."""
    c = run.config
    return max(
        c.n_heads * c.head_dim * c.q_lora_rank,
        c.n_heads * c.head_dim * c.o_lora_rank,
        c.dim * c.o_groups * c.o_lora_rank,
        c.dim * max(c.q_lora_rank, c.moe_inter_dim, c.head_dim),
        c.dim * c.dim * max(1, len(c.dspark_target_layer_ids)),
        c.index_n_heads * c.index_head_dim * c.q_lora_rank,
    )


def _few_rows(run: Rows, w: WeightRef, x: Any, out: Any) -> None:
    if w.codes is not None:
        run.tape.launch(linear_fp8, w.codes, w.scales, x, out=out)
    else:
        run.tape.launch(linear_bf16, w.bf16, x, out=out)
