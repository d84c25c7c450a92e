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

    Shapes: x [S,T,D], box [W], offsets [N], state [S,2], error [S] -> y [S,T,D], and box, state
    and error as they are afterwards.
    Rounds: every addition to float32, from rank 0's part on.
    A tile whose flag of some peer is behind is NaN, and the error keeps 1 + that peer's rank.
    Source: partial sums of a product cut along its reduction are added in one order on all ranks,
    so that all go on with the same bytes.
    """
    here, rows, width = x.shape
    size = rows * width
    # Elements that one flag speaks of: whole vectors of four where a part is cut into them.
    tile = 256 * (1 if size % 4 else 4)
    bits = encode(x.reshape(here, size), "f32").view(np.uint32)

    def added(parts: Bits, late: npt.NDArray[np.bool_]) -> Floats:
        total = parts[0].view(np.float32).astype(np.float64)
        for part in parts[1:]:
            total = np.asarray(round_to(total + part.view(np.float32).astype(np.float64), "f32"))
        return np.where(np.repeat(late, tile)[:size], np.nan, total)

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
    state [S,2], error [S] -> y [S,T], and box, state and error as they are afterwards.
    Ties go to the lowest rank, so to the lowest token; NaN never beats a number, +0 equals -0, and
    a row of NaN is rank 0's. All tokens are -1 where some peer's flag is behind.
    Source: the greedy token of a vocabulary cut into ranges.
    """
    here, rows = logit.shape
    ranks = first + np.arange(here)[:, None]
    tokens = (np.asarray(ids, np.int64) + share * ranks).astype(np.int32).view(np.uint32)
    bits = np.concatenate([encode(logit, "f32").view(np.uint32), tokens], axis=1)

    def best(parts: Bits, late: npt.NDArray[np.bool_]) -> Words:
        values = parts[:, :rows].view(np.float32).astype(np.float64)
        largest = np.max(values, axis=0, where=~np.isnan(values), initial=-np.inf)
        chosen = np.argmax(values == largest, axis=0)
        offered = parts[:, rows:].view(np.int32)[chosen, np.arange(rows)].astype(np.int64)
        return np.full(rows, -1, np.int64) if late.any() else offered

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
    """(what `make` gives of all ranks' parts and of which tiles are late, the arrays afterwards).

    bits [S, words of a part] of the ranks first..; tile: words that one flag speaks of.
    """
    ranks, (here, size) = len(offsets), bits.shape
    tiles = -(-size // tile)
    words = np.asarray(box).astype(np.int32).view(np.uint32)
    errors, turns = np.array(error), np.asarray(state, np.int64)[:, 0] % _WORD
    flags = 2 * ranks * size

    def places(of: int, source: int, turn: int) -> slice:
        begin = int(offsets[of]) + (turn % 2 * ranks + source) * size
        return slice(begin, begin + size)

    for s in range(here):
        for peer in set(range(ranks)) - {first + s}:
            words[places(peer, first + s, int(turns[s]))] = bits[s]
            begin = int(offsets[peer]) + flags + (first + s) * tiles
            words[begin : begin + tiles] = (int(turns[s]) + 1) % _WORD
    made = []
    for s in range(here):
        turn, rank = int(turns[s]), first + s
        late = np.zeros(tiles, bool)
        parts = np.stack([words[places(rank, source, turn)] for source in range(ranks)])
        parts[rank] = bits[s]
        for source in set(range(ranks)) - {rank}:
            begin = int(offsets[rank]) + flags + source * tiles
            ahead = (words[begin : begin + tiles].astype(np.int64) - turn - 1) % _WORD
            behind = ahead >= _WORD // 2
            late |= behind
            if behind.any():
                errors[s] = max(int(errors[s]), source + 1)
        made.append(make(parts, late))
    counted = ((turns + 1) % _WORD).astype(np.uint32).view(np.int32)
    return made, {
        "box": words.view(np.int32),
        "state": np.stack([counted, np.zeros_like(counted)], axis=1),
        "error": errors,
    }
