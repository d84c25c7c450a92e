"""Holds one output against its contract: which elements fail, and how much of the bound is used.

Specials come first, in every class: where the reference is NaN got must be NaN, where the
reference rounds to an infinity got must be that infinity, and nowhere else may either appear. The
payload and sign of a NaN are free, because the canonical NaN differs between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.spec import Contract, Exact, Ulp, Within
from lab.compare.contract import BOUNDS, Evidence, evidence
from lab.compare.pair import Mask, Pair
from oracle.formats import FORMATS, Floats, encode, order


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a contract: error over allowed error per element, and what follows from it.

    unjudged: elements whose intermediate sums may overflow the accumulator, so that the
    reference, though finite, promises nothing.
    """

    passed: bool
    reason: str
    bound_use: float
    use: Floats
    failing: Mask
    unjudged: int = 0


def label(contract: Contract) -> str:
    """The contract in a word: `bit_exact`, `ulp(1)`, `dot(K/128+7)`."""
    if isinstance(contract, Exact):
        return "bit_exact"
    if isinstance(contract, Ulp):
        return f"ulp({contract.n:g})"
    return f"{contract.kind}({contract.depth.replace(' ', '')})"


def judge(
    contract: Contract, pair: Pair, magnitude: Floats | None, shape: Mapping[str, Any]
) -> Judgement:
    """Judge every element. Errors: SpecError when the declaration does not fit the output.

    Exact: the bytes of the reference rounded once; -0 for +0 is a failure. Ulp(n): at most n
    spacings from the unrounded reference. Within: inside its kind's bound.
    """
    if isinstance(contract, Exact):
        use = np.where(pair.differ, np.inf, 0.0)
        return _judgement(contract, pair, use, np.zeros(pair.shape, np.bool_))
    if isinstance(contract, Ulp):
        if contract.n > 0:
            use = pair.real / contract.n
        else:
            use = np.where(pair.error != 0, np.inf, 0.0)
        return _judgement(contract, pair, use, np.zeros(pair.shape, np.bool_))
    facts = evidence(contract, pair, magnitude, shape)
    with np.errstate(invalid="ignore", over="ignore"):
        requant = contract.kind == "requant"
        use = _requant_use(pair, facts) if requant else _use(contract, pair, facts)
        return _judgement(contract, pair, use, _may_overflow(facts))


def _use(contract: Within, pair: Pair, facts: Evidence) -> Floats:
    allowed = BOUNDS[contract.kind](facts)
    error = np.abs(pair.error)
    return np.where(error == 0, 0.0, error / np.where(allowed > 0, allowed, np.finfo("f8").tiny))


def _requant_use(pair: Pair, facts: Evidence) -> Floats:
    """0 for the reference's code, 1 for a neighbour that ref's own error reaches, else infinite."""
    reach = np.where(pair.finite, BOUNDS["requant"](facts), 0.0)
    target = np.where(pair.finite, pair.target, 0.0)
    lowest = order(encode(target - reach, pair.fmt), pair.fmt)
    highest = order(encode(target + reach, pair.fmt), pair.fmt)
    got, ref = order(pair.got_bits, pair.fmt), order(pair.ref_bits, pair.fmt)
    allowed = (got >= np.maximum(lowest, ref - 1)) & (got <= np.minimum(highest, ref + 1))
    use = np.where(got == ref, 0.0, np.where(allowed, 1.0, np.inf))
    return np.where(pair.finite, use, 0.0)


def _may_overflow(facts: Evidence) -> Mask:
    """Where a partial sum can pass the accumulator's largest number although the sum cancels.

    Without cancellation (M equal to |ref|) an overflow is certain and the reference's own, so
    the law of specials stays in force.
    """
    limit = FORMATS[facts.accumulator].max * (1 - facts.gamma(facts.depth))
    cancels = facts.magnitude > np.abs(facts.ref) * (1 + 2.0**-40)
    return np.asarray(np.isfinite(facts.ref) & cancels & (facts.magnitude > limit))


def _judgement(contract: Contract, pair: Pair, use: Floats, free: Mask) -> Judgement:
    special = pair.special
    use = np.where(special, np.inf, use) if special.any() else use
    use = np.where(free, 0.0, use) if free.any() else use
    failing = np.asarray(use > 1)
    bad, unjudged = int(failing.sum()), int(free.sum())
    worst = float(use.max(initial=0.0))
    passed = bad == 0 and (unjudged < pair.size or pair.size == 0)
    reason = _reason(contract, pair, bad, worst, int((special & ~free).sum()), unjudged)
    return Judgement(passed, reason, worst, use, failing, unjudged)


def _reason(
    contract: Contract, pair: Pair, bad: int, worst: float, special: int, unjudged: int
) -> str:
    notes = ""
    if special:
        notes += f"; {special} are NaN or infinite on one side only"
    if unjudged:
        notes += f"; {unjudged} not judged, their partial sums may overflow the accumulator"
    if unjudged and unjudged == pair.size:
        return f"nothing could be judged{notes}"
    if isinstance(contract, Exact):
        text = f"{bad} of {pair.size} elements differ from the oracle's bytes"
        return (text if bad else f"all {pair.size} elements have the oracle's bytes") + notes
    if bad:
        far = f", the worst by {worst:.3g} times its bound" if np.isfinite(worst) else ""
        return f"{bad} of {pair.size} elements leave {label(contract)}{far}{notes}"
    return f"all {pair.size} elements within {label(contract)}, bound use {worst:.2f}{notes}"
