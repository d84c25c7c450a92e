"""Where the rows of a step lie: ring slots, raw rows, and the blocks that end at them."""

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def schedule(
    start: Indices, T: int, ring: int, raw: int, ratio: int, base: int
) -> dict[str, Indices]:
    """Seven lists of T integers for the rows at positions start[0], start[0] + 1, ...

    A row whose position ends no block has index_rows and store_rows -1, and firsts 0.
    """
    p = int(start[0]) + np.arange(T, dtype=np.int64)
    ends = (p + 1) % ratio == 0 if ratio else np.zeros(T, bool)
    block = p // ratio if ratio else np.zeros_like(p)
    return {
        "positions": p,
        "ring_rows": p % ring,
        "raw_rows": p % raw,
        "blocks": (p + 1) // ratio if ratio else np.zeros_like(p),
        "index_rows": np.where(ends, block, -1),
        "store_rows": np.where(ends, base + block, -1),
        "firsts": np.where(ends, block * ratio, 0),
    }


def schedule_advance(start: Indices, count: int) -> Indices:
    """The position `count` further on.  Shapes: [1] -> [1]."""
    return np.asarray(start + count)
