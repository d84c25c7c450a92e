"""Products of FP8 codes under 128 x 128 scales in Triton: K split over programs, then summed.

One row is multiplied element by element; more rows go through the tensor cores, padded to 16. Sums
are float32, so the bound is that of `linears` without its rounding to bf16: K 2^-23 sum |w x|, once
more for products that tl.dot may truncate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dsv4.axes import Shape
from lab.oracles import Reference
from lab.rivals import Candidate, Inputs, Prepared, Rival, outside
from lab.rivals.tensors import as_bf16, as_e4m3, as_f32, size_of, to_numpy

_PADDED_ROWS: Final = 16


@functools.cache
def kernels() -> Any:
    """The Triton kernels, compiled where they are first launched."""
    from lab.rivals import triton_gemv_kernels

    return triton_gemv_kernels


def _candidates(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    found = []
    if s.M == 1:
        for n, k, split, warps in itertools.product((4, 8, 16), (512, 1024), (1, 2, 4), (4, 8)):
            if s.K % (k * split) == 0:
                how = {"BLOCK_N": n, "BLOCK_K": k, "SPLIT": split, "num_warps": warps}
                found.append(_candidate(torch, device, inputs, s, how))
        return found
    for n, stages, split, warps in itertools.product((32, 64), (3, 4), (1, 2, 4, 8), (4,)):
        if s.K % (128 * split) == 0:
            how = {"ROWS": _PADDED_ROWS, "BLOCK_N": n, "SPLIT": split, "num_warps": warps}
            found.append(_candidate(torch, device, inputs, s, {**how, "num_stages": stages}))
    return found


def _candidate(
    torch: Any, device: str, inputs: Inputs, s: Shape, how: Mapping[str, int]
) -> Candidate:
    split = how["SPLIT"]

    def make() -> Prepared:
        w = as_e4m3(torch, device, inputs["codes"])
        scales = as_f32(torch, device, inputs["scales"])
        x = as_bf16(torch, device, inputs["x"])
        y = torch.empty((s.M, s.N), dtype=torch.float32, device=device)
        parts = torch.empty((split, s.M, s.N), dtype=torch.float32, device=device)
        to = y if split == 1 else parts
        own, grid, count = kernels(), (-(-s.N // how["BLOCK_N"]), split), int(s.M * s.N)

        def run() -> None:
            if s.M == 1:
                own.one_row[grid](w, scales, x, to, s.N, s.K, **how)
            else:
                own.few_rows[grid](
                    w, scales, x, to, s.M, s.N, s.K, DOT=own.dot_format(device), **how
                )
            if split > 1:
                own.sum_parts[(-(-count // 1024),)](parts, y, count, SPLIT=split, BLOCK=1024)

        size = size_of(w, scales, x, y)
        return Prepared(run, lambda: to_numpy(y), size, size + size_of(parts))

    return Candidate(" ".join(f"{k}={v}" for k, v in how.items()), make)


def _wrong(got: np.ndarray, wanted: Reference, inputs: Inputs, s: Shape) -> str:
    assert wanted.magnitude is not None, "a product has magnitudes"
    allowed = 2 * int(s.K) * 2.0**-23 * wanted.magnitude
    return outside(got, wanted.value, allowed, "2 K 2^-23 sum |w x|")


def _as_is(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    return dict(inputs)


RIVALS = (
    Rival(
        name="Triton FP8 GEMV",
        kernels=("linear_fp8",),
        output="y",
        needs=("torch", "triton"),
        note="written for this comparison; the same codes, scales and bf16 inputs; f32 result",
        sees=_as_is,
        candidates=_candidates,
        wrong=_wrong,
    ),
)
