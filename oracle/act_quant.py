"""Activation quantisers as the engine applies them: FP8 and FP4 groups, in place or as codes.

Rows may hold NaN and infinity: they take no part in choosing the scale; a NaN stays NaN, an
infinity saturates at the largest code of its group.
"""

import numpy as np

from oracle.blocks import Bytes, Exponents
from oracle.formats import Floats, decode, encode
from oracle.quantisers import FP4_FLOOR, FP8_FLOOR, dequantise, quantise_fp4, quantise_fp8
from oracle.stages import StageProbe, unprobed


def act_quant_fp8_inplace(
    x: Floats, *, prefix: int, group: int, clamp_only: int, probe: StageProbe = unprobed
) -> Floats:
    """x with the first `prefix` lanes of each row replaced by code * scale, per group of lanes.

    Shapes: x [T,S] -> [T,S].
    Rounds: to e4m3, ties to even, -0 kept; with clamp_only the rounding is left out and only
    infinities change. The result is stored in float32, where 2^128 becomes infinity.
    Source: the KV quantiser (groups of 64 over the lanes that are not rotated).
    """
    y = x.copy()
    codes, k = _fp8(x[:, :prefix], group, probe, "T ceil(prefix/group)")
    if clamp_only:
        limit = np.ldexp(448.0, k).repeat(group, -1)
        y[:, :prefix] = np.clip(x[:, :prefix], -limit, limit)
    else:
        y[:, :prefix] = dequantise(codes, k, group, "e4m3")
    return y


def act_quant_fp8(
    x: Floats, *, group: int, probe: StageProbe = unprobed
) -> dict[str, Bytes | Floats]:
    """The e4m3 codes of x, and one power-of-two scale per group.

    Shapes: x [T,K] -> codes [T,K], scales [T,K/group].
    Rounds: to e4m3, ties to even; whatever rounds to zero becomes code 0x00.
    Source: the input quantiser of FP8 and FP4 linear layers (groups of 128).
    """
    codes, k = _fp8(x, group, probe, "T ceil(K/group)")
    codes[codes == 0x80] = 0
    return {"codes": codes, "scales": np.ldexp(1.0, k)}


def act_quant_fp4_inplace(x: Floats, *, probe: StageProbe = unprobed) -> Floats:
    """x with every lane replaced by code * scale, per 32 lanes.

    Shapes: x [T,K] -> [T,K].
    Rounds: to e2m1, ties to even. A tiny negative value becomes -0; -0 itself becomes +0.
    Source: the indexer's quantiser of queries and keys.
    """
    finite = np.where(np.isfinite(x), x, 0.0)
    _, k = quantise_fp4(finite, 32)
    _probe_groups(finite, k, 32, FP4_FLOOR, probe, "T ceil(K/32)")
    shift = k.repeat(32, -1)
    # -0 + 0 is +0, and nothing else changes.
    codes = encode(np.where(np.isnan(x), 0.0, np.ldexp(x, -shift) + 0.0), "e2m1")
    return np.where(np.isnan(x), x, np.ldexp(decode(codes, "e2m1"), shift))


def _fp8(x: Floats, group: int, probe: StageProbe, axes: str) -> tuple[Bytes, Exponents]:
    finite = np.where(np.isfinite(x), x, 0.0)
    _, k = quantise_fp8(finite, group)
    _probe_groups(finite, k, group, FP8_FLOOR, probe, axes)
    return encode(np.ldexp(x, -k.repeat(group, -1)), "e4m3").astype(np.uint8), k


def _probe_groups(
    x: Floats, k: Exponents, group: int, floor: float, probe: StageProbe, axes: str
) -> None:
    amax = np.maximum(np.abs(x.reshape(len(x), -1, group)).max(axis=-1), floor)
    probe("amax", amax, axes, exact=True)
    probe("exponent", k, axes, exact=True)
