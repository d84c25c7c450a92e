"""How many drafts of a round stay: the greedy rule and the sampled one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsv4.speculation.refusals import refuse


def accept_prefix(candidates: Sequence[int], verified: Sequence[int]) -> int:
    """How many leading drafts the target would have chosen itself.

    candidates[0] is the anchor; verified[j] is the target's choice after candidates[j], so it
    judges candidates[j + 1].
    """
    accepted = 0
    for draft, choice in zip(candidates[1 : len(verified)], verified, strict=False):
        if int(draft) != int(choice):
            break
        accepted += 1
    return accepted


def rejection_len(
    p: Sequence[float] | np.ndarray, q: Sequence[float] | np.ndarray, u: Sequence[float]
) -> int:
    """How many leading drafts a sampled round keeps: until the first where not u q < p.

    The product, not a quotient: q = 0 with p > 0 accepts, p = 0 always rejects.
    Rounds: products of the given float32 numbers in float64.
    Errors: DrafterRefusal when q or u is shorter than p.
    """
    if len(q) < len(p) or len(u) < len(p):
        raise refuse(
            "accept-length",
            f"the acceptance of {len(p)} drafts",
            f"{len(q)} proposal probabilities and {len(u)} uniform numbers",
            "pass one of each for every draft",
        )
    for j, target in enumerate(p):
        if not float(u[j]) * float(q[j]) < float(target):
            return j
    return len(p)
