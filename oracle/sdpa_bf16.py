"""Grouped-query attention of bf16 numbers, all rows over the same keys."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats, round_to
from oracle.sdpa import sdpa_full


def sdpa_bf16(q: Floats, k: Floats, v: Floats, last: int, scale: float) -> Bounded:
    """Every row sees the keys 0..last-1. Shapes: q [T,H,K], k and v [N,G,K] -> [T,H,K].

    Rounds: q, k and v to bf16; nothing else. Magnitude: as the contract `softmax` asks.
    """
    q, k, v = (round_to(x, "bf16") for x in (q, k, v))
    return sdpa_full(q, k, v, np.full(len(q), last), scale)
