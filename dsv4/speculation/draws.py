"""Draws keyed by position: the token at a position depends on its row, the seed, and nothing else.

So a run that verifies several rows at once draws what a run of single steps draws, and a draft is
accepted exactly when it is the token drawn.
"""

from __future__ import annotations

import numpy as np

from dsv4.speculation.philox import philox
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import SpecSampling, filter_stats

POSITION = 0xFFFFFFFC
"""The first counter word of the stream of positions, apart from those of events."""


def position_uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a position, of 53 random bits."""
    high, low = (int(word[0]) for word in philox(seed, POSITION, position)[:2])
    return ((high << 32 | low) >> 11) * 2.0**-53


def draw_at(row: np.ndarray, position: int, sampling: SpecSampling) -> int:
    """The token of a position, from the logits [V] of the row before it.

    Kept tokens stand by falling logit, the lower one first where they tie; the uniform number of
    the position falls into the share of one of them. Filters are those of `filter_stats`.
    Rounds: nowhere; float64.
    Errors: DrafterRefusal for penalties, which need a history, and for a row that is not finite.
    """
    sampling.checked()
    if sampling.penalises:
        raise refuse(
            "session-penalties", "a draw by position", "a penalty", "leave penalties neutral"
        )
    if not np.isfinite(row).all():
        bad = int(np.flatnonzero(~np.isfinite(row))[0])
        raise refuse(
            "value",
            f"a draw at position {position}",
            f"logit {row[bad]} of token {bad}",
            "draw from finite logits; look for what made it with dsv4-lab model-diff",
        )
    mx, least, _ = filter_stats(row, sampling)
    share = np.exp((np.asarray(row, np.float64) - mx) / sampling.temp)
    kept = np.flatnonzero(share >= least)
    kept = kept[np.argsort(-row[kept], kind="stable")]
    mass = np.cumsum(share[kept])
    place = np.searchsorted(mass, position_uniform(sampling.seed, position) * mass[-1], "right")
    return int(kept[min(int(place), len(kept) - 1)])
