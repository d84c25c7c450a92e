"""How far the sub-blocks of a tensor-parallel model are from those of one device, over their bound.

Both get the same input. All that stands before the cut sum is the same bytes then: heads, groups
and quantiser groups lie whole on a rank. The sum itself is cut into N parts, each summed by the
kernel's own law and then added in the order of the ranks, so a term passes through the roundings
of its part, d_r, and N - 1 additions; on one device through d_1. Both are sums of the same
products, so they differ by no more than

    gamma(d_1 + max d_r + N - 1) * sum |a b| + u |y|,    gamma(L) = L u / (1 - L u),  u = 2^-24,

where depths are those that the kernels declare for the reduction's width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.axes import evaluate
from dsv4.engine.attention import attention
from dsv4.engine.block import joined
from dsv4.engine.engine import Engine
from dsv4.engine.experts import moe
from dsv4.engine.lanes import flush
from dsv4.engine.prefill import eager_rows
from dsv4.engine.rows import Rows
from dsv4.engine.state import new_layer_cache
from dsv4.engine.streams import Mixing
from dsv4.engine.weights import DenseSlab, ExpertKind, Fp4Bank, LayerWeights
from dsv4.kernels.linear_fp4 import linear_fp4_mx_down, linear_fp4_nv_down
from dsv4.kernels.linear_fp8 import linear_fp8
from dsv4.spec import BF16, E4M3, F32, I32, Format, Kernel, Within
from lab.compare.contract import gamma
from lab.compare.ulp import unit_roundoff
from oracle.blocks import decode_fp8_block, decode_mxfp4, decode_nvfp4
from oracle.formats import Floats, decode

_DOWN = {ExpertKind.MXFP4: linear_fp4_mx_down, ExpertKind.NVFP4: linear_fp4_nv_down}
_ROUNDOFF = unit_roundoff("f32")


@dataclass(frozen=True, slots=True)
class SubBlock:
    """A sub-block's output on all ranks beside that of one device.

    name: attn or ffn. alike: whether all ranks hold the same bytes. units: the largest distance in
    units of u times the sum of magnitudes. worst: the largest distance over its bound.
    """

    layer: int
    name: str
    alike: bool
    units: float
    worst: float


@dataclass(frozen=True, slots=True)
class _Sum:
    """What one device summed: magnitudes sum |a b| [T,D], and depths by width of the reduction."""

    magnitude: Floats
    depth: Callable[[int], int]
    width: int


def sub_blocks(one: Engine, many: Engine, *, rows: int, seed: int = 0) -> list[SubBlock]:
    """Every sub-block of every layer on the same random inputs at positions 0.. of a sequence.

    one, many: the same model on one device and on ranks, both with prefill_gemm="rows".
    """
    c, rng = one.config, np.random.default_rng(seed)
    found = []
    for layer in range(c.n_layers):
        x = rng.standard_normal((rows, c.dim)).astype(np.float32)
        ids = rng.integers(0, c.vocab_size, rows).astype(np.int32)
        for name, evidence in (("attn", _attended), ("ffn", _fed)):
            (run,), (alone,) = _outputs(one, layer, name, x, ids)
            summed = evidence(run, run.stage.layers[layer])
            _, outs = _outputs(many, layer, name, x, ids)
            found.append(_compared(layer, name, alone, outs, summed))
    return found


def _compared(layer: int, name: str, alone: Floats, outs: list[Floats], s: _Sum) -> SubBlock:
    count = len(outs)
    roundings = s.depth(s.width) + s.depth(s.width // count) + count - 1
    y = outs[-1].astype(np.float64)
    apart = np.abs(y - alone)
    bound = gamma(roundings, _ROUNDOFF) * s.magnitude + _ROUNDOFF * np.abs(y)
    alike = all(out.tobytes() == outs[0].tobytes() for out in outs)
    units = float((apart / (_ROUNDOFF * s.magnitude)).max())
    return SubBlock(layer, name, alike, units, float((apart / bound).max()))


def _outputs(
    engine: Engine, layer: int, name: str, x: np.ndarray, ids: np.ndarray
) -> tuple[list[Rows], list[Floats]]:
    """(the rows of every rank, the sub-block's output [T,D] there)."""
    c, runs, made = engine.config, eager_rows(engine, ids, 0, library=False), []
    for run in runs:
        w, device = run.stage.layers[layer], run.stage.device
        given, z = run.buffer("x", c.dim), run.buffer("z", c.dim)
        device.write(given, x)
        if name == "ffn":
            moe(run, w, given, z)
        else:
            rows, keys = engine.arms.prefill_chunk, engine.arms.index_format
            cache = new_layer_cache(device, c, w.ratio, engine.max_seq, rows, keys)
            # No streams are around it, so nothing comes back into them.
            attention(run, w, cache, given, z, Mixing(None, None, 0))
        made.append(joined(run, z))
    flush([run.tape for run in runs])
    return runs, [run.stage.device.to_numpy(y) for run, y in zip(runs, made, strict=True)]


def _attended(run: Rows, w: LayerWeights) -> _Sum:
    """wo_b on what the groups left."""
    x = decode(_left(run, "grouped bf16", w.wo_b.columns, BF16), "bf16")
    matrix = _dense(run, w.wo_b)
    return _Sum(np.abs(x) @ np.abs(matrix).T, _depth(linear_fp8), w.wo_b.columns)


def _fed(run: Rows, w: LayerWeights) -> _Sum:
    """w2 of the chosen experts and of the shared one on what was left inside of them."""
    active, width = run.config.n_activated_experts, run.config.moe_inter_dim
    codes = decode(_left(run, "expert hidden codes", active * width, E4M3), "e4m3")
    scales = _left(run, "expert hidden scales", active * width // 128, F32)
    hidden = (codes * scales.repeat(128, axis=1)).reshape(run.rows, active, width)
    shared = decode(_left(run, "shared hidden bf16", width, BF16), "bf16")
    magnitude = np.abs(shared) @ np.abs(_dense(run, w.shared.w2)).T
    ids = _left(run, "expert ids", active, I32)
    # A matrix is large, and a prompt has more slots than there are experts: each is decoded once.
    for expert in np.unique(ids):
        matrix = np.abs(_expert(run, w.experts.kind, w.experts.w2, int(expert)))
        tokens, slots = np.nonzero(ids == expert)
        np.add.at(magnitude, tokens, np.abs(hidden[tokens, slots]) @ matrix.T)
    routed, dense = _depth(_DOWN[w.experts.kind], A=active), _depth(linear_fp8)
    return _Sum(magnitude, lambda k: max(routed(k), dense(k) + 1), width)


def _left(run: Rows, name: str, width: int, fmt: Format) -> Any:
    """What the last launches left in a buffer [T,width], on the host."""
    return run.stage.device.to_numpy(run.buffer(name, width, fmt=fmt))


def _dense(run: Rows, w: DenseSlab) -> Floats:
    assert w.fp8 is not None, "the bound is that of products with FP8 matrices"
    read = run.stage.device.to_numpy
    return decode_fp8_block(read(w.fp8.codes), read(w.fp8.scales))


def _expert(run: Rows, kind: ExpertKind, bank: Fp4Bank, expert: int) -> Floats:
    read = run.stage.device.to_numpy
    codes, scales = read(bank.codes[expert]), read(bank.scales[expert])
    if kind is ExpertKind.MXFP4:
        return decode_mxfp4(codes, scales)
    return decode_nvfp4(codes, scales, float(read(bank.second[expert : expert + 1])[0]))


def _depth(kernel: Kernel, **axes: int) -> Callable[[int], int]:
    contract = kernel.spec.contract["y"]
    assert isinstance(contract, Within), "a product is within a bound"
    return lambda width: int(evaluate(contract.depth, {"K": width, **axes}))
