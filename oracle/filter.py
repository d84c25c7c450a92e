"""Filters of logit rows and draws from what they leave, with the random words of the model."""

import numpy as np
import numpy.typing as npt

from oracle.argmax import argmax
from oracle.bounded import Bounded
from oracle.formats import Floats, round_to

Ids = npt.NDArray[np.int64]
FILTERED_OUT = -3.4e38
RESIDUAL = 0xFFFFFFFD
_MASK = 0xFFFFFFFF


def filter_stats(
    x: Floats, *, temp: float, top_k: int, top_p: float, min_p: float
) -> dict[str, np.ndarray | Bounded]:
    """Largest logit, least kept exp((x - mx) / temp), and the mass that is kept. [T] each.

    th is the largest multiple of 2^-24 (at most 1 - 2^-24) at which enough is kept: top_k elements,
    or top_p of the whole mass; min_p from below. Magnitudes: 1 for th, z for z.
    """
    mx = np.fmax.reduce(x, axis=1)
    th, z = np.zeros(len(x)), np.zeros(len(x))
    for t, row in enumerate(x):
        e = np.exp((row - mx[t]) / temp)
        by_count, by_mass = 0 < top_k < len(e), top_p < 1
        low, high = 0.0, 1.0
        for _ in range(24 if by_count or by_mass else 0):
            middle = (low + high) / 2
            inside = e[e >= middle]
            enough = (by_count and len(inside) >= top_k) or (
                by_mass and inside.sum() >= top_p * e.sum()
            )
            low, high = (middle, high) if enough else (low, middle)
        th[t] = max(low, min_p)
        z[t] = e[e >= th[t]].sum()
    return {"mx": mx, "th": Bounded(th, np.ones_like(th)), "z": Bounded(z, z)}


def filter_gather(x: Floats, mx: Floats, th: Floats, z: Floats, ids: Ids, temp: float) -> Bounded:
    """The filtered probability of ids[t] in row t; NaN for an id outside the row. [T].

    Magnitude: p (1 + |x - mx| / temp), since the argument's rounding passes the exponential.
    """
    known = (ids >= 0) & (ids < x.shape[1])
    chosen = x[np.arange(len(x)), np.where(known, ids, 0)]
    e = np.exp((chosen - mx) / temp)
    p = np.where(known, np.where(e >= th, e / z, 0.0), np.nan)
    return Bounded(p, p * (1 + np.abs(chosen - mx) / temp))


def filter_gumbel(
    x: Floats, mx: Floats, th: Floats, z: Floats, *, temp: float, seed: int, event: int
) -> Ids:
    """The kept token with the largest x / temp + Gumbel number of every row; -1 for none. [T].

    Rounds: scores to float32, so that equal ones go to the lowest index.
    """
    chosen = np.full(len(x), -1)
    for t, row in enumerate(x):
        u = uniforms(words(seed, np.arange(-(-len(row) // 4)), event + t).reshape(-1)[: len(row)])
        inside = np.exp((row - mx[t]) / temp) >= th[t]
        scores = np.where(inside, row / temp - np.log(-np.log(u)), FILTERED_OUT)
        best = int(np.argmax(np.where(np.isnan(scores), -np.inf, round_to(scores, "f32"))))
        chosen[t] = best if z[t] > 0 and inside[best] else -1
    return chosen


def filter_residual_dense(
    x: Floats,
    mx: Floats,
    th: Floats,
    z: Floats,
    q: Floats,
    q_mx: Floats,
    q_th: Floats,
    q_z: Floats,
    *,
    temp: float,
    seed: int,
    event: int,
) -> Ids:
    """A draw from max(0, p - q) of two filtered rows, by one uniform number each. [T]."""
    p, other = _filtered(x, mx, th, z, temp), _filtered(q, q_mx, q_th, q_z, temp)
    return _draws(x, p - other, seed, event)


def filter_residual_sparse(
    x: Floats,
    mx: Floats,
    th: Floats,
    z: Floats,
    candidates: Ids,
    q: Floats,
    *,
    temp: float,
    seed: int,
    event: int,
) -> Ids:
    """A draw from max(0, p - q), q given for a few tokens; a token given twice adds. [T]."""
    excess = _filtered(x, mx, th, z, temp)
    for t, ids in enumerate(candidates):
        inside = (ids >= 0) & (ids < x.shape[1])
        np.subtract.at(excess[t], ids[inside], q[t][inside])
    return _draws(x, excess, seed, event)


def uniforms(raw: npt.NDArray[np.uint32]) -> Floats:
    """Numbers in (0, 1) from words: (f32(word) + 1) 2^-32 in float32, at most 1 - 2^-24."""
    u = (raw.astype(np.float32) + np.float32(1)) * np.float32(2.0**-32)
    return np.asarray(np.minimum(u, np.float32(1 - 2.0**-24)), np.float64)


def words(seed: int, c0: npt.ArrayLike, c1: int) -> npt.NDArray[np.uint32]:
    """Philox 4x32-10 of the counters (c0, c1, 0, 0) under a 64-bit key. [N,4]."""
    found = []
    for first in np.atleast_1d(np.asarray(c0)):
        x = [int(first) & _MASK, c1 & _MASK, 0, 0]
        low, high = seed & _MASK, seed >> 32 & _MASK
        for _ in range(10):
            a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
            x = [(b >> 32) ^ x[1] ^ low, b & _MASK, (a >> 32) ^ x[3] ^ high, a & _MASK]
            low, high = (low + 0x9E3779B9) & _MASK, (high + 0xBB67AE85) & _MASK
        found.append(x)
    return np.array(found, np.uint32)


def _filtered(x: Floats, mx: Floats, th: Floats, z: Floats, temp: float) -> Floats:
    e = np.exp((x - mx[:, None]) / temp)
    return np.where(e >= th[:, None], e / z[:, None], 0.0)


def _draws(x: Floats, excess: Floats, seed: int, event: int) -> Ids:
    chosen = np.zeros(len(x), np.int64)
    for t, row in enumerate(np.fmax(excess, 0.0)):  # a residual of NaN counts as none
        total = row.sum()
        if not total > 0:
            chosen[t] = argmax(x[t : t + 1])[0]
            continue
        u = float(uniforms(words(seed, RESIDUAL, event + t)[:, 0])[0])
        reached = (np.cumsum(row) >= u * total) & (row > 0)
        chosen[t] = int(np.argmax(reached)) if reached.any() else int(np.flatnonzero(row)[-1])
    return chosen
