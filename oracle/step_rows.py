"""Where the rows of a step lie and what they see, for every compress ratio at once."""

import numpy as np

from oracle.index_lists import Indices, index_lists_window
from oracle.schedule import schedule


def step_rows(start: Indices, rules: Indices, window: int, T: int, S: int) -> dict[str, Indices]:
    """The lists of `schedule` for every rule, and the rows that `index_lists_window` names.

    Shapes: start [1], rules [G,5] of (ring, raw, ratio, base, open) -> places [G,7,T], ids [G,T,S].
    An open tail stays absent. Rings below 1 count as 1, ratios and starts below 0 as 0.
    """
    places, ids = [], []
    first = np.maximum(start, 0)
    for ring, raw, ratio, base, opened in (tuple(int(n) for n in rule) for rule in rules):
        slots = max(1, ring)
        lists = schedule(first, T, slots, max(1, raw), max(0, ratio), base)
        counts = np.full(T, -1) if opened else lists["blocks"]
        places.append(np.stack(list(lists.values())))
        ids.append(index_lists_window(lists["positions"], counts, window, slots, base, S))
    return {"places": np.stack(places), "ids": np.stack(ids)}
