"""Distances on the format's lattice: how many representable numbers lie between got and ref."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.compare.pair import Mask, Pair
from oracle.formats import FORMATS, order

BUCKETS = (
    "0", "1", "2", "3-4", "5-8", "9-16", "17-64", "65-1024", ">1024", "sign", "nan", "inf",
)  # fmt: skip
_EDGES = np.array([1, 2, 3, 5, 9, 17, 65, 1025], np.uint64)
_SIGN, _NAN, _INF = (BUCKETS.index(name) for name in ("sign", "nan", "inf"))
_LOWEST_OCTAVE = -40

Distances = npt.NDArray[np.uint64]
Buckets = npt.NDArray[np.uint8]


def lattice(pair: Pair, where: Mask) -> Distances:
    """Steps of the format from the rounded reference to got, for the chosen elements.

    +0 and -0 are no step apart. Unsigned, because two float64 can be more than 2^63 steps apart.
    Only finite elements have a meaningful distance.
    """
    got, ref = pair.got_bits[where], pair.ref_bits[where]
    if pair.is_integer:
        a, b = got.astype(np.int64), ref.astype(np.int64)
    else:
        a, b = order(got, pair.fmt), order(ref, pair.fmt)
    high, low = np.maximum(a, b), np.minimum(a, b)
    return high.view(np.uint64) - low.view(np.uint64)  # exact modulo 2^64


def bucket_of(pair: Pair) -> Buckets:
    """The index into `BUCKETS` of every element.

    "sign": both are numbers other than zero, of opposite sign. "nan": one of the two is NaN.
    "inf": one is infinite and the other is not the same infinity. A zero of the wrong sign is no
    step away, so it stays in "0" and is counted by `zero_signs`.
    """
    buckets = np.zeros(pair.shape, np.uint8)
    if not pair.differ.any():
        return buckets
    got, ref = pair.got[pair.differ], pair.rounded[pair.differ]
    found = np.searchsorted(_EDGES, lattice(pair, pair.differ), side="right").astype(np.uint8)
    found[((got < 0) & (ref > 0)) | ((got > 0) & (ref < 0))] = _SIGN
    found[np.isinf(got) | np.isinf(ref)] = _INF
    found[np.isnan(got) | np.isnan(ref)] = _NAN
    buckets[pair.differ] = found
    return buckets


def histogram(buckets: Buckets) -> dict[str, int]:
    """How many elements fall into each bucket, every bucket named, in order."""
    counts = np.bincount(buckets.reshape(-1), minlength=len(BUCKETS))
    return {name: int(n) for name, n in zip(BUCKETS, counts, strict=True)}


def by_magnitude(pair: Pair, buckets: Buckets) -> dict[str, dict[str, int]]:
    """A histogram for each octave of |ref| below the largest: "0" is the topmost, "-1" half of it.

    Errors in small elements of a sum that cancelled show here, apart from errors everywhere.
    Only filled buckets are listed; octaves below -40 share one line, zeros have their own.
    """
    magnitude = np.abs(np.where(pair.finite, pair.ref, 0.0)).reshape(-1)
    if not magnitude.size:
        return {}
    exponent = np.frexp(magnitude)[1]
    octave = np.maximum(exponent - np.frexp(magnitude.max())[1], _LOWEST_OCTAVE)
    octave[magnitude == 0] = _LOWEST_OCTAVE - 1
    row = (-octave).astype(np.intp) * len(BUCKETS) + buckets.reshape(-1)
    rows = 2 - _LOWEST_OCTAVE
    counts = np.bincount(row, minlength=rows * len(BUCKETS)).reshape(rows, len(BUCKETS))
    names = [str(-i) for i in range(-_LOWEST_OCTAVE)] + [f"<={_LOWEST_OCTAVE}", "zero"]
    return {
        name: {b: int(n) for b, n in zip(BUCKETS, line, strict=True) if n}
        for name, line in zip(names, counts, strict=True)
        if line.any()
    }


def ulp_max(pair: Pair) -> int:
    """The largest lattice distance among finite elements."""
    where = pair.differ & pair.finite
    return int(lattice(pair, where).max(initial=0))


def unit_roundoff(fmt: str) -> float:
    """The largest relative error of one rounding to the format: half a spacing at 1."""
    return float(2.0 ** -(FORMATS[fmt].mantissa + 1))
