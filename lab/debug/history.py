"""The commit that changed a kernel: its bits, its contract, or its time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import SpecError
from lab import revisions
from lab.record import comparison
from lab.record.sides import Side, open_side

GOOD, BAD, SKIPPED = "good", "bad", "skipped"


@dataclass(frozen=True, slots=True)
class Trial:
    """One revision that was run: the commit, its subject, and how it compares with the good end."""

    commit: str
    subject: str
    state: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """One element of `bisect source`'s trials."""
        return {"commit": self.commit, "subject": self.subject, "state": self.state,
                "why": self.why}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The first bad commit, what was tried, and commits beside it that could not be judged."""

    first: Trial
    trials: tuple[Trial, ...]
    unsure: tuple[str, ...]


def bisect_source(
    good: str,
    bad: str,
    selection: Sequence[str],
    *,
    on: str,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Found:
    """The first commit of GOOD..BAD, among those that touch cuda/, that is not like GOOD.

    selection: arguments of kernel-diff. on: "bits", "contract" or "time".
    Errors: SpecError for a range without commits, or ends that do not differ.
    """
    commits = _commits(good, bad)
    if not commits:
        raise SpecError(
            f"bisect {good}..{bad}: no commit between them changes cuda/\n"
            "  give an older and a newer revision of this checkout"
        )
    arguments = [*selection, *([] if on == "time" else ["--no-time"])]
    begin = open_side(f"build:{good}", Path(), arguments)
    trials: dict[str, Trial] = {}

    def state_of(commit: str) -> str:
        if commit not in trials:
            state, why = _judge(begin, commit, arguments, on)
            trials[commit] = Trial(commit, revisions.short_name(commit), state, why)
            tell(trials[commit])
        return trials[commit].state

    if state_of(commits[-1]) != BAD:
        raise SpecError(
            f"bisect {good}..{bad}: {on} at {bad} is as at {good} ({trials[commits[-1]].why})\n"
            "  give ends that differ, or another --on, -p or -c"
        )
    first, unsure = _search(commits, state_of)
    return Found(trials[first], tuple(trials.values()), unsure)


def _search(commits: list[str], state_of: Callable[[str], str]) -> tuple[str, tuple[str, ...]]:
    """Halve between the last good and the first bad; commits that cannot run are stepped over."""
    low, high = -1, len(commits) - 1
    skipped: set[int] = set()
    while True:
        open_places = [i for i in range(low + 1, high) if i not in skipped]
        if not open_places:
            return commits[high], tuple(commits[i] for i in sorted(skipped) if low < i < high)
        middle = min(open_places, key=lambda i: abs(i - (low + high) / 2))
        state = state_of(commits[middle])
        if state == BAD:
            high = middle
        elif state == GOOD:
            low = middle
        else:
            skipped.add(middle)


def _judge(begin: Side, commit: str, arguments: Sequence[str], on: str) -> tuple[str, str]:
    try:
        side = open_side(f"build:{commit}", Path(), arguments)
    except SpecError as error:
        return SKIPPED, str(error).splitlines()[0]
    found = comparison.changes(begin, side, comparison.Thresholds())
    if any(c.after == "ERROR" and c.before != "ERROR" for c in found) and on != "contract":
        return SKIPPED, "it does not build or launch"
    bad = [c for c in found if _is_bad(c, on)]
    if not bad:
        return GOOD, f"{len(found)} cases as before"
    first = bad[0]
    return BAD, f"{first.kernel} {first.label}: " + (
        "; ".join(first.why) or f"{first.before} -> {first.after} {first.time}".strip()
    )


def _is_bad(change: comparison.Change, on: str) -> bool:
    if on == "bits":
        return change.bits == comparison.FAIL
    if on == "time":
        return change.time == comparison.SLOWER
    return change.before == "PASS" and change.contract_broken


def _commits(good: str, bad: str) -> list[str]:
    """Commits after GOOD up to BAD that touch cuda/, oldest first. Errors: SpecError."""
    for name in (good, bad):
        if not revisions.is_revision(name):
            raise SpecError(f"bisect: git does not know the revision {name!r} in this checkout")
    command = ["git", "-C", str(revisions.ROOT), "rev-list", "--reverse", "--first-parent"]
    done = subprocess.run(
        [*command, f"{good}..{bad}", "--", "cuda"], capture_output=True, text=True, check=False
    )
    return done.stdout.split()
