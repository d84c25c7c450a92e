"""End-to-end greedy runs of a pair against recorded ones: emitted tokens and accepted counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsv4.speculation.loops import Generation, generate, plain
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import WindowPolicy
from lab.drafter_recorded import DrafterRecord
from lab.model_diff import Check

FULL_WINDOW = Switches(adapt=False)
"""The recorded loops verify every proposal."""
Pair = tuple[Any, Any]


def run_checks(record: DrafterRecord, make: Callable[[], Pair], **more: Any) -> Iterator[Check]:
    """Checks of every recorded run; integers must be the recorded ones.

    make: gives target and drafter. more: goes to `generate`.
    """
    target, drafter = make()
    numbers = sorted({n.split(".")[0] for n in record.arrays if n.startswith("run")})
    for number in numbers:
        arrays = {
            n.removeprefix(f"{number}."): a
            for n, a in record.arrays.items()
            if n.startswith(f"{number}.")
        }
        prompt, wanted = arrays["prompt_ids"].tolist(), arrays["emitted_ids"]
        alone = plain(target, prompt, len(wanted))
        yield _same(f"{number}.greedy_ids", np.array(alone), arrays["greedy_ids"])
        threshold = float(arrays.get("confidence_threshold", np.zeros(1))[0])
        policy = WindowPolicy("confidence-slot", threshold, floor=1) if threshold else None
        found = generate(
            target,
            drafter,
            prompt,
            len(wanted),
            switches=FULL_WINDOW,
            policy=policy,
            **more,
        )
        yield _same(f"{number}.emitted_ids", np.array(found.tokens), wanted)
        yield from _rounds(number, found, arrays)


def _rounds(number: str, found: Generation, arrays: dict[str, np.ndarray]) -> Iterator[Check]:
    """Rounds before the recorded loop shortens its blocks, which it does near the limit."""
    rounds = found.stats.rounds
    lengths = (arrays["round.proposed"] >= 0).sum(axis=1)
    short = np.flatnonzero(lengths < lengths.max())
    own_lengths = "round.proposal_length" in arrays
    whole = len(lengths) if own_lengths or not len(short) else int(short[0])
    for name, values in (
        ("start", [r.start for r in rounds]),
        ("anchor", [r.anchor for r in rounds]),
        ("accepted", [r.accepted for r in rounds]),
    ):
        wanted = arrays[f"round.{name}"][:whole]
        yield _same(f"{number}.round.{name}", np.array(values[: len(wanted)]), wanted)
    for i, r in enumerate(rounds[:whole]):
        wanted = arrays["round.proposed"][i]
        drafts = np.array(r.drafts[: r.vt - 1])
        yield _same(f"{number}.round{i}.proposed", drafts, wanted[wanted >= 0])


def _same(name: str, found: np.ndarray, wanted: np.ndarray) -> Check:
    if found.shape != wanted.shape:
        return Check(f"{name} count", wanted.size, np.inf, 1.0, np.inf, 0.0)
    wrong = float(np.count_nonzero(found != wanted))
    return Check(name, wanted.size, wrong, 1.0, wrong, 0.0)
