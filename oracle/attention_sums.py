"""Sums of a softmax taken apart: weights relative to a whole power of two, chunk by chunk."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import FORMATS

CHUNK = 40
"""Present entries of a list that are summed together."""

_LN2 = np.log(2)
_VAST = 1e30  # a magnitude that bounds nothing


def chunk_sums(
    q: np.ndarray,
    kv: np.ndarray,
    listed: np.ndarray,
    scale: float,
    fmt: str,
    reaching: np.ndarray | None = None,
) -> dict[str, Bounded]:
    """Per query, head and chunk of 40 present entries: power, total and value.

    Shapes: q [T,H,K], kv [N,K], listed [T,S] -> power, total [T,ceil(S/40),H], value [..,K].
    power: the whole number nearest to the largest logit over ln 2, or the lowest finite number when
    nothing weighs anything. total: the sum of e^logit / 2^power. value: the same sum with the rows.
    Rounds: not at all, but a logit beyond the range of `fmt` is infinite. Where a logit's own error
    decides which whole number is nearest, the magnitude is vast: either choice is right.
    reaching: what an error of q is relative to; |q| if not given.
    """
    reaching = np.abs(q) if reaching is None else reaching
    count, heads, width = q.shape
    shape = (count, -(-listed.shape[1] // CHUNK), heads)
    sums = {"power": np.full(shape, -FORMATS[fmt].max), "total": np.zeros(shape)}
    sums["value"] = np.zeros((*shape, width))
    sizes = {name: np.zeros(array.shape) for name, array in sums.items()}
    for t in range(count):
        present = listed[t][listed[t] >= 0]
        for c in range(-(-present.size // CHUNK)):
            rows = kv[present[c * CHUNK : (c + 1) * CHUNK]]
            found = _sums(q[t], reaching[t], rows, scale, fmt)
            for name, (value, magnitude) in found.items():
                sums[name][t, c], sizes[name][t, c] = value, magnitude
    return {name: Bounded(sums[name], sizes[name]) for name in sums}


def joined_sums(
    power: np.ndarray, total: np.ndarray, value: np.ndarray, sink: np.ndarray, fmt: str
) -> Bounded:
    """sum of value 2^power / (sum of total 2^power + e^sink); zeros when nothing weighs anything.

    Shapes: power, total [T,B,H], value [T,B,H,K], sink [H] -> [T,H,K].
    """
    absent = power == -FORMATS[fmt].max
    top = np.maximum(np.where(absent, -np.inf, power).max(axis=1), sink / _LN2)
    shares = np.where(absent, 0.0, np.exp2(power - top[:, None]))
    below = (shares * total).sum(axis=1) + np.exp2(sink / _LN2 - top)
    value = np.where(absent[..., None], 0.0, value)
    dead = (top == -np.inf)[..., None]
    sums, sizes = (
        np.where(dead, 0.0, (shares[..., None] * v).sum(axis=1) / below[..., None])
        for v in (value, np.abs(value))
    )
    return Bounded(sums, sizes + np.abs(sums))


def _sums(
    q: np.ndarray, reaching: np.ndarray, rows: np.ndarray, scale: float, fmt: str
) -> dict[str, Bounded]:
    """One chunk of one query.  Shapes: q [H,K], rows [n,K] -> power, total [H], value [H,K]."""
    limit, tiny = FORMATS[fmt].max, FORMATS[fmt].min_normal
    logits = scale * q @ rows.T
    logits = np.where(np.abs(logits) > limit, np.sign(logits) * np.inf, logits)
    reach = abs(scale) * reaching @ np.abs(rows).T
    # Twice what a chain of K products and what follows can do to a logit, in units of ln 2.
    doubt = 4 * (q.shape[1] + 32) * 2.0 ** -(FORMATS[fmt].mantissa + 1) * reach
    scored = np.where(np.isnan(logits), 0.0, logits) / _LN2
    lowest, nearest, highest = (
        np.rint((scored + d).max(axis=1)) for d in (-doubt, np.zeros(1), doubt)
    )
    dead = nearest == -np.inf
    unsure = np.where((lowest == highest) | dead, 0.0, _VAST)
    weights = np.exp2(logits / _LN2 - np.where(dead, 0.0, nearest)[:, None])
    sizes = np.where(logits == -np.inf, 0.0, 1.1 * (weights + tiny) * (1 + reach))
    return {
        "power": Bounded(np.where(dead, -limit, nearest), unsure),
        "total": Bounded(weights.sum(axis=1), sizes.sum(axis=1) + unsure),
        "value": Bounded(weights @ rows, sizes @ np.abs(rows) + unsure[:, None]),
    }
