"""Attention with a sink over listed rows in Triton: the list split over programs, then joined.

Queries and rows are bf16 for the tensor cores, which the oracle is told. Bound: a logit is off by
at most e = K 2^-23 scale sum |q kv|, so a weight by 2 e of itself beside its rounding to bf16 for
the product (2^-8); the sums over S entries and the join add (S + 16) 2^-23. All of it multiplies
the largest |kv| of the column among the listed rows, which no weighted mean exceeds; a second
exponential rounding of the same size is granted to tl.exp (2^-20).
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
from lab.rivals.tensors import as_bf16, as_f32, as_i32, size_of, to_numpy
from oracle.formats import decode, encode

_NARROWEST: Final = 16


@functools.cache
def kernels() -> Any:
    """The Triton kernels, compiled where they are first launched."""
    from lab.rivals import triton_attention_kernels

    return triton_attention_kernels


def _in_bf16(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    """Queries and rows rounded to bf16."""
    rounded = {
        name: decode(encode(inputs[name].astype(np.float64), "bf16"), "bf16").astype(np.float32)
        for name in ("q", "kv")
    }
    return {**inputs, **rounded}


def _candidates(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    width = int(s.K)
    if width < _NARROWEST or width & (width - 1):
        return []  # a tile of Triton is a power of two wide
    return [
        _candidate(
            torch, device, inputs, s,
            {"WIDTH": width, "HEADS": heads, "ENTRIES": entries, "SPLIT": split,
             "num_warps": warps},
        )
        for heads, entries, split, warps in itertools.product(
            (16, 32), (32, 64), (5, 10, 20), (4, 8)
        )
    ]  # fmt: skip


def _candidate(
    torch: Any, device: str, inputs: Inputs, s: Shape, how: Mapping[str, int]
) -> Candidate:
    split, width = how["SPLIT"], how["WIDTH"]

    def make() -> Prepared:
        q = as_bf16(torch, device, encode(inputs["q"].astype(np.float64), "bf16"))
        kv = as_bf16(torch, device, encode(inputs["kv"].astype(np.float64), "bf16"))
        ids = as_i32(torch, device, inputs["ids"])
        sink = as_f32(torch, device, inputs["sink"])
        sums = (s.T, split, s.H)
        tops, totals = (torch.empty(sums, dtype=torch.float32, device=device) for _ in range(2))
        values = torch.empty((*sums, width), dtype=torch.float32, device=device)
        o = torch.empty((s.T, s.H, width), dtype=torch.float32, device=device)
        own, heads = kernels(), -(-s.H // how["HEADS"])

        def run() -> None:
            own.part_of_list[(s.T, heads, split)](
                q,
                kv,
                ids,
                tops,
                totals,
                values,
                s.H,
                s.N,
                s.S,
                s.S,
                float(s.scale),
                DOT=own.dot_format(device),
                **how,
            )
            own.join_parts[(s.T, s.H)](tops, totals, values, sink, o, s.H, WIDTH=width, SPLIT=split)

        held = size_of(q, kv, ids, sink, o)
        return Prepared(run, lambda: to_numpy(o), held, held + size_of(tops, totals, values))

    return Candidate(" ".join(f"{k}={v}" for k, v in how.items()), make)


def _wrong(got: np.ndarray, wanted: Reference, inputs: Inputs, s: Shape) -> str:
    q, kv = (np.abs(inputs[n].astype(np.float64)) for n in ("q", "kv"))
    listed = (inputs["ids"] >= 0) & (inputs["ids"] < s.N)
    rows = kv[np.where(listed, inputs["ids"], 0)] * listed[..., None]
    products = np.einsum("thk,tsk->ths", q, rows).max(axis=2, initial=0.0)
    logit = int(s.K) * 2.0**-23 * abs(float(s.scale)) * products
    relative = 2 * logit + 2.0**-8 + (int(s.S) + 16) * 2.0**-23 + 2.0**-20
    allowed = relative[..., None] * rows.max(axis=1, initial=0.0)[:, None, :]
    return outside(got, wanted.value, allowed, "the bound of bf16 weights")


RIVALS = (
    Rival(
        name="Triton attention",
        kernels=("attention_sink", "attention_sink_f32"),
        output="o",
        needs=("torch", "triton"),
        note="written for this comparison; queries and rows in bf16; f32 result",
        sees=_in_bf16,
        candidates=_candidates,
        wrong=_wrong,
    ),
)
