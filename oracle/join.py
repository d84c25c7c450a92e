"""What several ranks have in part, joined: of what lies in a rank's mailbox, in their order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.formats import Floats, encode, round_to

Words = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]
_WORD = 1 << 32


def join_add(
    x: Floats,
    box: Words,
    offsets: Words,
    state: Words,
    error: Words,
    *,
    first: int,
) -> dict[str, Any]:
    """All parts of a turn, added in the order of the ranks, by each rank of this launch.

    Shapes: x [S,T,D], box [W], offsets [N], state [S,tiles], error [S] -> y [S,T,D], and box, state
    and error as they are afterwards.
    Rounds: every addition to float32, from rank 0's part on.
    An element is NaN where some peer's letter is behind, and the error keeps 1 + that peer's rank.
    Source: partial sums of a product cut along its reduction are added in one order on all ranks,
    so that all go on with the same bytes.
    """
    here, rows, width = x.shape
    size = rows * width
    # Elements that one count speaks of: pairs where a part is cut into them.
    tile = 256 * (2 - size % 2)
    bits = encode(x.reshape(here, size), "f32").view(np.uint32)

    def added(parts: Bits, late: npt.NDArray[np.bool_]) -> Floats:
        total = parts[0].view(np.float32).astype(np.float64)
        for part in parts[1:]:
            total = np.asarray(round_to(total + part.view(np.float32).astype(np.float64), "f32"))
        return np.where(late, np.nan, total)

    made, after = _met(bits, tile, box, offsets, state, error, first, added)
    return {"y": np.stack(made).reshape(x.shape), **after}


def join_argmax(
    logit: Floats,
    ids: Words,
    box: Words,
    offsets: Words,
    state: Words,
    error: Words,
    *,
    first: int,
    share: int,
) -> dict[str, Any]:
    """The token with the largest logit of a turn, by each rank of this launch.

    Shapes: logit [S,T], ids [S,T] (places in a rank's `share` tokens), box [W], offsets [N],
    state [S,1], error [S] -> y [S,T], and box, state and error as they are afterwards.
    Ties go to the lowest rank, so to the lowest token; NaN never beats a number, +0 equals -0, and
    a row of NaN is rank 0's. A token is -1 where some peer's letter of that row is behind.
    Source: the greedy token of a vocabulary cut into ranges.
    """
    here, rows = logit.shape
    ranks = first + np.arange(here)[:, None]
    tokens = (np.asarray(ids, np.int64) + share * ranks).astype(np.int32).view(np.uint32)
    bits = np.stack([encode(logit, "f32").view(np.uint32), tokens], axis=2).reshape(here, -1)

    def best(parts: Bits, late: npt.NDArray[np.bool_]) -> Words:
        values = parts[:, 0::2].copy().view(np.float32).astype(np.float64)
        largest = np.max(values, axis=0, where=~np.isnan(values), initial=-np.inf)
        chosen = np.argmax(values == largest, axis=0)
        offered = parts[chosen, 1 + 2 * np.arange(rows)].view(np.int32).astype(np.int64)
        return np.where(late.reshape(rows, 2).any(axis=1), -1, offered)

    made, after = _met(bits, 2 * rows, box, offsets, state, error, first, best)
    return {"y": np.stack(made), **after}


def _met(
    bits: Bits,
    tile: int,
    box: Words,
    offsets: Words,
    state: Words,
    error: Words,
    first: int,
    make: Callable[[Bits, npt.NDArray[np.bool_]], Any],
) -> tuple[list[Any], dict[str, Any]]:
    """(what `make` gives of all ranks' parts and of what is late in them, the arrays afterwards).

    bits [S, values of a part] of the ranks first..; tile: values that one count speaks of. A letter
    is a stamp, which is the turn's number + 1, over a value of 32 bits.
    """
    ranks, (here, size) = len(offsets), bits.shape
    letters, errors = np.array(box, np.int64).view(np.uint64), np.array(error)
    turns = np.repeat(np.asarray(state, np.int64) % _WORD, tile, axis=1)[:, :size]
    stamps = ((turns + 1) % _WORD).astype(np.uint64)

    def places(of: int, source: int, s: int) -> Words:
        part: Words = (turns[s] % 2 * ranks + source) * size
        return int(offsets[of]) + part + np.arange(size)

    for s in range(here):
        for peer in set(range(ranks)) - {first + s}:
            letters[places(peer, first + s, s)] = stamps[s] << np.uint64(32) | bits[s]
    made = []
    for s in range(here):
        parts, late = np.empty((ranks, size), np.uint32), np.zeros(size, bool)
        parts[first + s] = bits[s]
        for source in set(range(ranks)) - {first + s}:
            found = letters[places(first + s, source, s)]
            parts[source] = found % _WORD
            ahead = ((found >> np.uint64(32)).astype(np.int64) - turns[s] - 1) % _WORD
            behind = ahead >= _WORD // 2
            late |= behind
            if behind.any():
                errors[s] = max(int(errors[s]), source + 1)
        made.append(make(parts, late))
    counted = ((np.asarray(state, np.int64) + 1) % _WORD).astype(np.uint32).view(np.int32)
    return made, {"box": letters.view(np.int64), "state": counted, "error": errors}
