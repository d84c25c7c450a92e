"""The parts of several ranks joined: an ordered sum of what lies in a rank's mailbox."""

from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.formats import Floats, encode, round_to

Words = npt.NDArray[np.int64]
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
    ranks, (here, rows, width) = len(offsets), x.shape
    size = rows * width
    # Elements that one flag speaks of: whole vectors of four where a part is cut into them.
    tile = 256 * (1 if size % 4 else 4)
    tiles = -(-size // tile)
    words = np.asarray(box).astype(np.int32).view(np.uint32)
    errors, turns = np.array(error), np.asarray(state, np.int64)[:, 0] % _WORD
    bits = encode(x.reshape(here, size), "f32").view(np.uint32)
    flags = 2 * ranks * size

    def places(of: int, source: int, turn: int) -> slice:
        begin = int(offsets[of]) + (turn % 2 * ranks + source) * size
        return slice(begin, begin + size)

    for s in range(here):
        for peer in set(range(ranks)) - {first + s}:
            words[places(peer, first + s, int(turns[s]))] = bits[s]
            begin = int(offsets[peer]) + flags + (first + s) * tiles
            words[begin : begin + tiles] = (int(turns[s]) + 1) % _WORD
    y = np.empty((here, size))
    for s in range(here):
        turn, rank = int(turns[s]), first + s
        total = np.zeros(size)
        late = np.zeros(tiles, bool)
        for source in range(ranks):
            part = bits[s].view(np.float32)
            if source != rank:
                part = words[places(rank, source, turn)].view(np.float32)
                begin = int(offsets[rank]) + flags + source * tiles
                ahead = (words[begin : begin + tiles].astype(np.int64) - turn - 1) % _WORD
                behind = ahead >= _WORD // 2
                late |= behind
                if behind.any():
                    errors[s] = max(int(errors[s]), source + 1)
            added = part.astype(np.float64)
            total = added if source == 0 else round_to(total + added, "f32")
        y[s] = np.where(np.repeat(late, tile)[:size], np.nan, total)
    counted = ((turns + 1) % _WORD).astype(np.uint32).view(np.int32)
    return {
        "y": y.reshape(x.shape),
        "box": words.view(np.int32),
        "state": np.stack([counted, np.zeros_like(counted)], axis=1),
        "error": errors,
    }
