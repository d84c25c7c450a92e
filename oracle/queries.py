"""Both products of the queries' latent, and the indexer's heads as scores take them."""

import numpy as np
import numpy.typing as npt

from oracle.blocks import Bytes, Exponents, smallest_exponent
from oracle.bounded import Bounded
from oracle.formats import Floats, decode, encode
from oracle.hadamard import hadamard
from oracle.linear_fp8 import linear_fp8
from oracle.quantisers import FP4_FLOOR
from oracle.rope import rope

_U = 2.0**-24
_GROUP, _LARGEST = 32, 6.0
_VAST = 1e30  # a magnitude that bounds nothing


def queries_fp8(
    codes: Bytes,
    scales: Floats,
    index_codes: Bytes,
    index_scales: Floats,
    x: Floats,
    table: Floats,
    positions: npt.NDArray[np.int64],
    scale: float,
    H: int,
) -> dict[str, Bounded]:
    """y = x w^T; index_q = x times the indexer's w^T, rotated, Hadamard-transformed, in FP4.

    Shapes: codes [N,K], index_codes [H*D,K], x [M,K], table [P,R], positions [M] -> y [M,N],
    index_q [M,H,D].
    Rounds: index_q to e2m1 per 32 lanes, with a power-of-two scale; before it nothing.
    Magnitude: of y that of `linear_fp8`. An FP4 value is off by whole steps where the sums before
    it, off by their bounds, may round to another code or choose another scale: the magnitude is the
    largest such step in units of 2^-24.
    """
    raw = linear_fp8(index_codes, index_scales, x)
    error = 1.01 * _sum_roundings(x.shape[1]) * _U * raw.magnitude
    shape = (len(x), H, len(index_codes) // H)
    turned, reach = _turned(raw.value.reshape(shape), error.reshape(shape), table, positions)
    rows = turned.reshape(-1, shape[2])
    mixed = hadamard(rows, scale)
    # Every element of a row is a sum of all of them, each of which is off.
    additions = np.log2(shape[2]) + 1.0
    off = abs(scale) * reach.reshape(rows.shape).sum(axis=1, keepdims=True)
    off = np.broadcast_to(off + 1.01 * additions * _U * mixed.magnitude, rows.shape)
    value, magnitude = _in_fp4(mixed.value, off)
    return {
        "y": linear_fp8(codes, scales, x),
        "index_q": Bounded(value.reshape(shape), magnitude.reshape(shape)),
    }


def _sum_roundings(columns: int) -> int:
    """Roundings on the longest way through a product, as `linear_fp8` declares them."""
    groups = -(-columns // 128)
    parts = min(16, groups)
    return 40 * min(8, 4 * -(-columns // 64)) + -(-groups // parts) + parts - 1


def _turned(
    x: Floats, error: Floats, table: Floats, positions: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(x rotated, how far it may be off) for an x that is off by `error`."""
    turned = rope(x, table, positions, inverse=0)
    carried = rope(error, table, positions, inverse=0).magnitude
    kept = slice(0, x.shape[-1] - table.shape[1])
    carried[..., kept] = error[..., kept]
    return turned.value, carried + 2.02 * _U * turned.magnitude


def _in_fp4(x: Floats, error: Floats) -> tuple[Floats, Floats]:
    """(x in FP4, how far that may be off in units of 2^-24) for an x that is off by `error`."""
    groups = (len(x), -1, _GROUP)
    x, error = x.reshape(groups), error.reshape(groups)
    # What is not finite takes no part in a scale; a NaN stays one, whatever its error.
    size, error = (np.where(np.isfinite(a), a, 0.0) for a in (np.abs(x), error))
    exponents = [
        smallest_exponent(np.maximum(a.max(axis=2, keepdims=True), FP4_FLOOR), _LARGEST)
        for a in (np.maximum(size - error, 0.0), size, size + error)
    ]
    low, own, high = exponents
    value, off = _rounded(x, own), np.zeros_like(x)
    for k in (low, own, high):
        for end in (x - error, x + error):
            off = np.fmax(off, np.abs(_rounded(end, k) - value))
    off = np.where(high - low > 1, _VAST, off)
    return value, off / _U


def _rounded(x: Floats, k: Exponents) -> Floats:
    """The FP4 values of x under scales 2^k; a negative that rounds to zero is -0, -0 is +0."""
    safe = np.where(np.isfinite(x), x, 0.0)
    values = np.ldexp(decode(encode(np.ldexp(safe, -k) + 0.0, "e2m1"), "e2m1"), k)
    return np.where(np.isnan(x), np.nan, values)
