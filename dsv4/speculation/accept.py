"""How many drafts of a round stay: the greedy rule and the sampled one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsv4.speculation.philox import host_u01
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import (
    Counters,
    Proposal,
    RowsProposal,
    Sampler,
    SpecSampling,
)


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


def accept_sampled(
    logits: Any,
    proposal: Proposal,
    vt: int,
    sampling: SpecSampling,
    counters: Counters,
    sampler: Sampler,
) -> tuple[int, int]:
    """How many drafts of a sampled round stay, and the token after them.

    logits: the target's rows [vt,V]. All uniforms of the window are drawn whatever happens, so
    that the streams do not depend on where a round ends.
    """
    judged = vt - 1
    first = counters.uniforms(judged)
    u = [host_u01(sampling.seed, (first + j) & 0xFFFFFFFF) for j in range(judged)]
    drafts = proposal.tokens[:judged]
    stats = sampler.stats(logits[:judged], sampling) if judged else None
    accepted = 0
    if judged:
        p = sampler.gather(logits[:judged], stats, drafts, sampling.temp)
        if isinstance(proposal, RowsProposal):
            rows, own = proposal.logits[:judged], proposal.stats[:judged]
            q = sampler.gather(rows, own, drafts, sampling.temp)
        else:
            q = proposal.q_chosen[:judged]
        accepted = rejection_len(p, q, u)
    row, event = logits[accepted : accepted + 1], counters.events()
    if accepted == judged:
        # This row was not among the judged ones: it has filters of its own.
        return accepted, sampler.gumbel(row, sampler.stats(row, sampling), sampling, event)
    at = slice(accepted, accepted + 1)
    assert stats is not None
    if isinstance(proposal, RowsProposal):
        token = sampler.residual_dense(
            row, stats[at], proposal.logits[at], proposal.stats[at], sampling, event
        )
    else:
        token = sampler.residual_sparse(
            row, stats[at], proposal.ids[accepted], proposal.q_rows[accepted], sampling, event
        )
    return accepted, token
