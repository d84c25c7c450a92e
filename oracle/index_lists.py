"""Which rows a query attends to, as positions, blocks, ring slots and rows of a gathered operand.

Lists are [T, columns], one row a query, ascending positions first; -1 is an absent entry.
"""

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def window_list(positions: npt.ArrayLike, window: int, columns: int) -> Indices:
    """The last `window` positions up to each query's own, ascending, padded at the end.

    Source: sliding_window; the window includes the query itself.
    """
    p = np.asarray(positions, np.int64)[:, None]
    listed = np.maximum(0, p - window + 1) + np.arange(columns)
    return np.where(listed <= p, listed, -1)


def visible_blocks(positions: npt.ArrayLike, ratio: int) -> Indices:
    """How many complete blocks each query sees; one that ends at its own position counts."""
    p = np.asarray(positions, np.int64)
    return (p + 1) // ratio if ratio else np.zeros_like(p)


def block_list(positions: npt.ArrayLike, ratio: int, columns: int) -> Indices:
    """All complete blocks of each query, ascending."""
    listed = np.broadcast_to(np.arange(columns), (len(np.asarray(positions)), columns))
    return np.where(listed < visible_blocks(positions, ratio)[:, None], listed, -1)


def ring_slots(listed: npt.ArrayLike, window: int) -> Indices:
    """The ring slot of each listed position."""
    listed = np.asarray(listed, np.int64)
    return np.where(listed >= 0, listed % window, -1)


def offset(listed: npt.ArrayLike, start: int) -> Indices:
    """Entries moved to where their rows start in a gathered operand."""
    listed = np.asarray(listed, np.int64)
    return np.where(listed >= 0, listed + start, -1)


def redirect(listed: npt.ArrayLike, first: int, window: int, start: int) -> Indices:
    """Ring slots, except for positions from `first` on: those rows lie at start, start + 1, ...

    For a round whose own rows are not in the ring yet.
    """
    listed = np.asarray(listed, np.int64)
    return np.where(listed >= first, start + listed - first, ring_slots(listed, window))


def draft_list(position: int, window: int, block: int) -> Indices:
    """What every row of a draft block sees: the ring's valid slots, then the whole block.

    Shapes: -> [min(window, position + 1) + block]. The newest row in the ring is `position`; the
    block's rows follow the ring's `window` slots. There is no causal order inside the block.
    """
    return np.concatenate([np.arange(min(window, position + 1)), window + np.arange(block)])


def index_lists_window(
    positions: Indices, blocks: Indices, window: int, ring: int, base: int, S: int
) -> Indices:
    """Window slots in ascending order of position, then the first blocks of each query.

    Shapes: positions [T], blocks [T] -> [T,S]; entries from `window` on are block rows.
    A ring longer than every position leaves positions as they are. A negative count of blocks, or
    position, is none.
    """
    slots = ring_slots(window_list(positions, window, window), ring)
    return np.concatenate([slots, _tail(blocks, S - window, base)], axis=1)


def index_lists_redirect(
    positions: Indices,
    blocks: Indices,
    first: Indices,
    window: int,
    ring: int,
    base: int,
    transient: int,
    S: int,
) -> Indices:
    """As `index_lists_window`, positions from first[0] on being rows transient, transient + 1, ...

    Shapes: positions [T], blocks [T], first [1] -> [T,S].
    """
    listed = window_list(positions, window, window)
    slots = redirect(listed, int(first[0]), ring, transient)
    slots = np.where(listed >= 0, slots, -1)
    return np.concatenate([slots, _tail(blocks, S - window, base)], axis=1)


def _tail(blocks: Indices, columns: int, base: int) -> Indices:
    listed = np.broadcast_to(np.arange(columns), (len(blocks), columns))
    return offset(np.where(listed < blocks[:, None], listed, -1), base)
