"""Weight encoders of the precision modes, bit for bit: half, q8_0, q4_0, and bf16 widening.

Blocks are 32 consecutive values of a row. q8_0: a half scale and 32 signed bytes, 34 bytes. q4_0: a
half scale and 16 bytes, element j in the low nibble and j + 16 in the high one, 18 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dsv4.speculation.refusals import refuse

BLOCK: Final = 32
PRECISIONS: Final = ("q8", "q4", "bf16", "mixed", "fc")
FORMATS: Final = ("bf16", "q8_0", "q4_0")


def precision_named(name: str) -> str:
    """The precision mode; q8 when empty. Errors: DrafterRefusal."""
    if name and name not in PRECISIONS:
        raise refuse("precision", "DSV4_DFLASH_PREC", repr(name), "name one, or unset it")
    return name or "q8"


def format_of(tensor: str, precision: str) -> str:
    """How a matrix is kept under a mode, one of FORMATS."""
    if precision == "bf16":
        return "bf16"
    if tensor.endswith("markov_w2.weight"):
        return "q8_0"
    if precision == "mixed":
        return "q8_0" if ".mlp." in tensor else "bf16"
    if precision == "fc":
        return "bf16" if tensor == "fc.weight" else "q8_0"
    return "q4_0" if precision == "q4" else "q8_0"


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Float32 numbers of bf16 bits. Exact."""
    return np.asarray((bits.astype(np.uint32) << 16).view(np.float32))


def half_from_f32(values: np.ndarray) -> np.ndarray:
    """Half-precision bits, nearest even; subnormal halves become zero, NaN infinity."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    sign = (bits >> 16) & 0x8000
    exponent = ((bits >> 23) & 0xFF).astype(np.int64) - 127 + 15
    mantissa, dropped = (bits >> 13) & 0x3FF, bits & 0x1FFF
    up = (dropped > 0x1000) | ((dropped == 0x1000) & (mantissa & 1 == 1))
    # A carry out of the mantissa rolls into the exponent, and from 65520 on into infinity.
    normal = (np.clip(exponent, 0, 31).astype(np.uint32) << 10 | mantissa) + up
    finite = np.where(exponent >= 31, 0x7C00, normal)
    return np.asarray((sign | np.where(exponent <= 0, 0, finite)).astype(np.uint16))


def half_to_f32(bits: np.ndarray) -> np.ndarray:
    """Float32 numbers of half bits. Exact."""
    return np.asarray(bits.astype(np.uint16).view(np.float16).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantised matrix [N,K]: scales [N,K/32] as half bits, and codes.

    codes: [N,K] bytes of signed numbers for q8_0, [N,K/2] pairs for q4_0, in the order of files:
    a block's byte j holds elements j and j + 16.
    """

    fmt: str
    scales: np.ndarray
    codes: np.ndarray

    def to_bytes(self) -> bytes:
        """The blocks as files hold them: scale, then codes."""
        rows, blocks = self.scales.shape
        codes = self.codes.reshape(rows, blocks, -1)
        scales = np.ascontiguousarray(self.scales[..., None]).view(np.uint8)
        return np.concatenate([scales.reshape(rows, blocks, 2), codes], axis=2).tobytes()


def encode(values: np.ndarray, fmt: str) -> Blocks:
    """A float32 matrix [N,K] as q8_0 or q4_0. Errors: DrafterRefusal unless 32 divides K."""
    return encode_q8_0(values) if fmt == "q8_0" else encode_q4_0(values)


def encode_q8_0(values: np.ndarray) -> Blocks:
    """Codes round(v / s) with ties away from zero, s = max |v| / 127.

    Rounds: the stored scale is the half of s, the codes use the inverse of s itself.
    """
    v = _blocks(values)
    scale = np.abs(v).max(axis=2) / np.float32(127)
    codes = _ties_away(v * _inverse(scale)[..., None]).clip(-127, 127).astype(np.int8)
    return Blocks("q8_0", half_from_f32(scale), codes.reshape(len(v), -1).view(np.uint8))


def encode_q4_0(values: np.ndarray) -> Blocks:
    """Codes trunc(v / s + 8.5) in 0..15, s = the first value of largest magnitude / -8."""
    v = _blocks(values)
    at = np.abs(v).argmax(axis=2)[..., None]
    scale = np.take_along_axis(v, at, axis=2)[..., 0] / np.float32(-8)
    codes = (v * _inverse(scale)[..., None] + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return Blocks("q4_0", half_from_f32(scale), packed.reshape(len(v), -1))


def decode(blocks: Blocks) -> np.ndarray:
    """The float32 matrix that the blocks stand for."""
    rows, count = blocks.scales.shape
    codes = blocks.codes.reshape(rows, count, -1)
    if blocks.fmt == "q8_0":
        numbers = codes.view(np.int8).astype(np.float32)
    else:
        numbers = np.concatenate([codes & 15, codes >> 4], axis=2).astype(np.float32) - 8
    return np.asarray((numbers * half_to_f32(blocks.scales)[..., None]).reshape(rows, -1))


def _blocks(values: np.ndarray) -> np.ndarray:
    v = np.asarray(values, np.float32)
    if v.ndim != 2 or v.shape[1] % BLOCK:
        raise refuse(
            "quant-width",
            "quantising a matrix",
            f"shape {list(v.shape)}",
            "use precision bf16 for this drafter",
        )
    return v.reshape(len(v), -1, BLOCK)


def _inverse(scale: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)


def _ties_away(v: np.ndarray) -> np.ndarray:
    whole = np.trunc(v)
    return np.asarray(whole + np.where(np.abs(v - whole) >= 0.5, np.sign(v), np.float32(0)))
