"""Products through torch: cuBLAS on bf16 matrices, and torch._scaled_mm on FP8 codes.

Bounds. Products of bf16 or FP8 numbers are exact in float32. A sum of K of them in float32, in any
order and with truncation, is off by at most K 2^-23 sum |w x|. A tensor core adds 32 FP8 products
at a time into registers of which 13 bits behind the point count: K/32 such sums are off by at most
K/32 2^-13 sum |w x|. The result is rounded to bf16 once, 2^-8 of itself. What is quantised before
is what the oracle is asked about, so it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dsv4.axes import Shape
from dsv4.errors import Refusal
from lab.oracles import Reference
from lab.rivals import Candidate, Inputs, Prepared, Rival, outside
from lab.rivals.tensors import (
    as_bf16,
    as_e4m3,
    as_f32,
    dequantised,
    quantised,
    size_of,
    to_numpy,
)
from oracle.formats import decode, encode

_LINEARS: Final = ("linear_fp8",)
_BF16_ROUND: Final = 2.0**-8


def _as_is(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    return dict(inputs)


def _within(accumulated: Callable[[int], float], words: str) -> Any:
    def wrong(got: np.ndarray, wanted: Reference, inputs: Inputs, s: Shape) -> str:
        assert wanted.magnitude is not None, "a product has magnitudes"
        depth = s.K if "K" in s.keys() else s.D
        sums = accumulated(int(depth)) * wanted.magnitude
        allowed = _BF16_ROUND * (np.abs(wanted.value) + sums) + sums
        return outside(got, wanted.value, allowed, words)

    return wrong


_F32_SUMS = _within(lambda k: k * 2.0**-23, "K 2^-23 sum |w x| and one rounding to bf16")
_FP8_SUMS = _within(lambda k: k / 32 * 2.0**-13, "K/32 2^-13 sum |w x| and one rounding to bf16")


def _bf16_weights(inputs: Inputs) -> np.ndarray:
    """The matrix in bf16, exactly. Errors: Refusal for scales that are no powers of two."""
    if "w" in inputs:
        return np.asarray(inputs["w"])
    values = dequantised(inputs["codes"], inputs["scales"])
    bits = encode(values, "bf16")
    if not np.array_equal(decode(bits, "bf16"), values):
        raise Refusal(
            "a bf16 matrix was to be made of FP8 codes\n  their scales are no powers of two, so it"
            " would be another matrix\n  in lab.rivals.linears\n  time a case with scales 2^k"
        )
    return bits


def _mm(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    weights = _bf16_weights(inputs)
    x_bits = inputs["x"] if inputs["x"].dtype == np.uint16 else encode(inputs["x"], "bf16")
    # Partial sums of a split K stay float32, as ours do.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def make() -> Prepared:
        w, x = as_bf16(torch, device, weights), as_bf16(torch, device, x_bits)
        y = torch.empty((x.shape[0], w.shape[0]), dtype=torch.bfloat16, device=device)
        size = size_of(w, x, y)
        return Prepared(lambda: torch.mm(x, w.t(), out=y), lambda: to_numpy(y), size, size)

    return [Candidate("x [M,K] times w [N,K] transposed", make)]


def _bf16_input(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    """float32 rows rounded to bf16, as cuBLAS takes them."""
    rounded = decode(encode(inputs["x"].astype(np.float64), "bf16"), "bf16")
    return {**inputs, "x": rounded.astype(np.float32)}


def _one_scale(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    """The codes under one scale, and inputs that are FP8 under one scale."""
    codes, scale = _under_one_scale(inputs)
    values = decode(codes, "e4m3") * scale
    return {**inputs, "scales": np.ones_like(inputs["scales"]), "x": encode(values, "bf16")}


def _under_one_scale(inputs: Inputs) -> tuple[np.ndarray, float]:
    """(FP8 codes of x, the largest scale that any of its rows needs)."""
    x = decode(inputs["x"], "bf16")
    _, scales = quantised(x, x.shape[1])
    return encode(x / scales.max(), "e4m3"), float(scales.max())


def _block_scales(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    """Inputs that are FP8 under a scale for each 128 of a row."""
    codes, scales = quantised(decode(inputs["x"], "bf16"), 128)
    values = decode(codes, "e4m3") * np.repeat(scales, 128, axis=1)[:, : s.K]
    return {**inputs, "x": encode(values, "bf16")}


def _scaled_mm_one(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    x_codes, largest = _under_one_scale(inputs)

    def candidate(fast: bool) -> Candidate:
        def make() -> Prepared:
            w, given = as_e4m3(torch, device, inputs["codes"]), as_e4m3(torch, device, x_codes)
            one = as_f32(torch, device, np.ones(()))
            scale = as_f32(torch, device, np.asarray(largest))
            return _scaled(torch, given, w, scale, one, fast)

        return Candidate(f"one scale a matrix, {'fast' if fast else 'full'} sums", make)

    return [candidate(True), candidate(False)]


def _scaled_mm_blocks(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    x_codes, x_scales = quantised(decode(inputs["x"], "bf16"), 128)

    def make() -> Prepared:
        w, given = as_e4m3(torch, device, inputs["codes"]), as_e4m3(torch, device, x_codes)
        # Scales of rows lie with the rows innermost; those of the matrix are its transpose's.
        rows = as_f32(torch, device, x_scales.T).t()
        blocks = as_f32(torch, device, inputs["scales"]).t()
        return _scaled(torch, given, w, rows, blocks, False)

    return [Candidate("a scale for 128 of a row and for 128 x 128 of the matrix", make)]


def _scaled(torch: Any, x: Any, w: Any, x_scale: Any, w_scale: Any, fast: bool) -> Prepared:
    held: list[Any] = []

    def run() -> None:
        y = torch._scaled_mm(
            x, w.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )  # fmt: skip
        held[:] = [y]

    size = size_of(x, w, x_scale, w_scale) + 2 * int(x.shape[0]) * int(w.shape[0])
    return Prepared(run, lambda: to_numpy(held[0]), size, size)


RIVALS = (
    Rival(
        name="torch.mm bf16",
        kernels=(*_LINEARS, "linear_bf16"),
        output="y",
        needs=("torch",),
        note="cuBLAS on the matrix in bf16, twice the bytes of FP8; bf16 result",
        sees=_as_is,
        candidates=_mm,
        wrong=_F32_SUMS,
    ),
    Rival(
        name="torch.mm bf16 head",
        kernels=("lm_head", "lm_head_f32"),
        output="y",
        needs=("torch",),
        note="cuBLAS on inputs rounded to bf16; bf16 logits, no argmax",
        sees=_bf16_input,
        candidates=_mm,
        wrong=_F32_SUMS,
    ),
    Rival(
        name="torch._scaled_mm, one scale",
        kernels=_LINEARS,
        output="y",
        needs=("torch",),
        note="FP8 inputs, quantised before the timing; one scale a matrix; bf16 result",
        sees=_one_scale,
        candidates=_scaled_mm_one,
        wrong=_FP8_SUMS,
    ),
    Rival(
        name="torch._scaled_mm, blocks",
        kernels=_LINEARS,
        output="y",
        needs=("torch",),
        note="FP8 inputs, quantised before the timing; the release's 128 x 128 scales; bf16 result",
        sees=_block_scales,
        candidates=_scaled_mm_blocks,
        wrong=_FP8_SUMS,
    ),
)
