"""Triton kernels of attention with a sink over listed rows; importing this needs Triton."""

import triton
import triton.language as tl


def dot_format(device: str) -> tl.dtype:
    """What tensor cores multiply: bf16; the interpreter on a CPU knows products of float32 only."""
    return tl.float32 if device == "cpu" else tl.bfloat16


@triton.jit
def part_of_list(
    q, kv, ids, tops, totals, values, H, N, S, stride, scale,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, ENTRIES: tl.constexpr, SPLIT: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """The softmax sums of one part of a row's list, for HEADS heads."""
    t, part = tl.program_id(0), tl.program_id(2)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    query = tl.load(q + (t * H + h[:, None]) * WIDTH + d[None, :], mask=h[:, None] < H, other=0.0)
    query = query.to(DOT)
    top = tl.full((HEADS,), -1e30, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    value = tl.zeros((HEADS, WIDTH), tl.float32)
    share = tl.cdiv(tl.cdiv(S, SPLIT), ENTRIES) * ENTRIES
    for at in range(part * share, tl.minimum((part + 1) * share, S), ENTRIES):
        entry = at + tl.arange(0, ENTRIES)
        row = tl.load(ids + t * stride + entry, mask=entry < S, other=-1)
        there = (row >= 0) & (row < N)
        where = tl.where(there, row, 0).to(tl.int64)[:, None] * WIDTH + d[None, :]
        rows = tl.load(kv + where, mask=there[:, None], other=0.0).to(DOT)
        logits = tl.dot(query, tl.trans(rows)) * scale
        logits = tl.where(there[None, :], logits, -1e30)
        now = tl.maximum(top, tl.max(logits, axis=1))
        fade = tl.exp(top - now)
        weights = tl.where(there[None, :], tl.exp(logits - now[:, None]), 0.0)
        total = total * fade + tl.sum(weights, axis=1)
        value = value * fade[:, None] + tl.dot(weights.to(tl.bfloat16).to(DOT), rows)
        top = now
    to = (t * SPLIT + part) * H + h
    tl.store(tops + to, top, mask=h < H)
    tl.store(totals + to, total, mask=h < H)
    tl.store(values + to[:, None] * WIDTH + d[None, :], value, mask=h[:, None] < H)


@triton.jit
def join_parts(
    tops, totals, values, sink, o, H, WIDTH: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """One head of one row: its parts and its sink under the largest logit."""
    t, h = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    top = tl.load(sink + h)
    for part in tl.static_range(SPLIT):
        top = tl.maximum(top, tl.load(tops + (t * SPLIT + part) * H + h))
    total = tl.exp(tl.load(sink + h) - top)
    value = tl.zeros((WIDTH,), tl.float32)
    for part in tl.static_range(SPLIT):
        at = (t * SPLIT + part) * H + h
        fade = tl.exp(tl.load(tops + at) - top)
        total += fade * tl.load(totals + at)
        value += fade * tl.load(values + at * WIDTH + d)
    tl.store(o + (t * H + h) * WIDTH + d, value / total)
