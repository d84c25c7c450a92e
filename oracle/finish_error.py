"""How far the roundings of the front of a layer may carry a row, through norms and quantisers.

Errors are absolute here, to first order, with 2 in a hundred for what is of second order. u = 2^-24
is the unit roundoff of float32. A quantiser is monotone: what comes out for a value that is off by
at most e lies between what comes out at its two ends, with the scale of either end of the group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from oracle.act_quant import act_quant_fp4_inplace, act_quant_fp8_inplace
from oracle.bounded import Bounded
from oracle.formats import Floats, decode, encode
from oracle.hadamard import hadamard
from oracle.movement import Ids
from oracle.quantisers import quantise_fp4, quantise_fp8
from oracle.rope import rope

U, ETA = 2.0**-24, 2.0**-149
THREADS = 512
"""Of a norm: so many lanes add squares, then two butterflies of 5 and 4 fold them."""


class Carried(NamedTuple):
    """Rows [T,K] and how far each element may be off."""

    value: Floats
    error: Floats

    @property
    def counted(self) -> Bounded:
        """The value with a magnitude for a contract of depth 1; no number can be off from none."""
        known = np.isfinite(self.value) & np.isfinite(self.error)
        return Bounded(self.value, np.where(known, 1.02 * self.error / U, 0.0))


def pool_error(pooled: Bounded, pairs: int) -> Floats:
    """Of pooled rows: sums in f64, with the roundings of a softmax; then one to float32."""
    in_f64 = 1.1 * (pairs + 8) * 2.0**-53 * pooled.magnitude
    return np.asarray(in_f64 + U * np.abs(pooled.value) + ETA)


def normed(x: Floats, error: Floats, gain: Floats, eps: float) -> Carried:
    """Rows over their root mean square, times the gain.

    The factor r = (mean x^2 + eps)^-1/2 changes by r^2 mean(x dx) of itself. Its sum of squares has
    a chain of roundings, which the root halves; 8 cover mean, eps, root, reciprocal and products.
    """
    r = 1.0 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
    y = gain * (x * r)
    shift = r * r * np.mean(np.abs(x) * error, axis=1, keepdims=True)
    chain = math.ceil((math.ceil(x.shape[1] / THREADS) + 9) / 2) + 8
    moved = np.abs(gain) * (r * (error + np.abs(x) * shift) + 2 * ETA)
    return Carried(y, moved + chain * U * np.abs(y) + ETA)


def key_row(rows: Carried, table: Floats, positions: Ids, clamp_only: int) -> Carried:
    """Rows whose last lanes are turned, and whose others go through FP8 per 64 lanes."""
    turned, plain = _turned(rows, table, positions), rows.value.shape[1] - table.shape[1]
    x, e = rows.value[:, :plain], rows.error[:, :plain]
    value = turned.value.copy()
    named = dict(prefix=plain, group=64, clamp_only=clamp_only)
    value[:, :plain] = act_quant_fp8_inplace(x, **named)
    error = turned.error.copy()
    if not clamp_only:
        error[:, :plain] = _through(x, e, value[:, :plain], 64, "e4m3")
    return Carried(value, error)


def index_row(rows: Carried, table: Floats, positions: Ids, scale: float) -> Carried:
    """Rows whose last lanes are turned, through the Hadamard transform, then FP4 per 32 lanes."""
    turned = _turned(rows, table, positions)
    y, sizes = hadamard(turned.value, scale)
    additions = math.log2(y.shape[1])
    moved = abs(scale) * turned.error.sum(axis=1, keepdims=True)
    error = moved + U * (additions * sizes + np.abs(y)) + ETA
    value = act_quant_fp4_inplace(y)
    return Carried(value, _through(y, error, value, 32, "e2m1"))


def _turned(rows: Carried, table: Floats, positions: Ids) -> Carried:
    y, sizes = rope(rows.value[:, None], table, positions, inverse=0)
    # A turned error is bounded like a turned size; lanes that stay keep theirs.
    moved = rope(rows.error[:, None], table, positions, inverse=0).magnitude[:, 0]
    error, lanes = rows.error.copy(), slice(rows.value.shape[1] - table.shape[1], None)
    error[:, lanes] = (moved + 2 * U * sizes[:, 0])[:, lanes] + 3 * ETA
    return Carried(y[:, 0], error)


def _through(x: Floats, error: Floats, value: Floats, group: int, fmt: str) -> Floats:
    """How far the quantised value may be off where x is off by at most the error."""
    known = np.isfinite(x)
    size = np.where(known, np.abs(x), 0.0)
    e = np.where(known & np.isfinite(error), error, 0.0)
    quantise = quantise_fp8 if fmt == "e4m3" else quantise_fp4
    off = np.zeros_like(x)
    for widest in (size + e, np.maximum(size - e, 0.0)):
        shift = quantise(widest, group)[1].repeat(group, -1)
        for end in (x - e, x + e):
            codes = encode(np.where(known, np.ldexp(end, -shift), 0.0), fmt)
            off = np.maximum(off, np.abs(np.ldexp(decode(codes, fmt), shift) - value))
    # Where the sign is open, so is that of a zero.
    off = np.where(size <= e, np.maximum(off, e), off)
    return np.where(known, off, 0.0)
