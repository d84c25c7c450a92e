"""What was tried to reach targets and what limits them, as people wrote it down.

`docs/measured/attempts.toml` has a `note` about all, a table `limits` with a sentence for each
target, and a list `attempts`, the best first: what was done, what it gave, for which targets, and
the commit where it stayed or can be found.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4.errors import Refusal
from lab.bench.targets import TARGETS, Target


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that was made and measured. result: what it gave, in words."""

    targets: Sequence[str]
    what: str
    result: str
    commit: str = ""

    def words(self) -> str:
        """The attempt and what it gave, in one line."""
        return f"{self.what}: {self.result}" + (f" (commit {self.commit})" if self.commit else "")


@dataclass(frozen=True, slots=True)
class Written:
    """The whole record. note: about all attempts. limits: by target, what its counters show."""

    note: str
    limits: Mapping[str, str]
    attempts: Sequence[Attempt]

    def about(self, target: Target) -> list[Attempt]:
        """A target's attempts, the best first."""
        return [a for a in self.attempts if target.what in a.targets]


def read_attempts(path: Path) -> Written:
    """The record of a file. Errors: Refusal for other fields, and for targets that are none."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        attempts = [Attempt(**entry) for entry in content.pop("attempts", [])]
        note = str(content.pop("note", ""))
        limits = {str(k): str(v) for k, v in content.pop("limits", {}).items()}
    except (OSError, tomllib.TOMLDecodeError, TypeError) as error:
        raise Refusal(
            f"{path.name} cannot be read ({error})\n  an attempt has targets, what, result and"
            " commit\n  in lab.report.attempts\n  write it so"
        ) from None
    named = [*content, *limits, *(t for a in attempts for t in a.targets)]
    if unknown := sorted(set(named) - {t.what for t in TARGETS}):
        raise Refusal(
            f"{path.name} is about {'; '.join(unknown)}\n  no target has that name\n"
            "  in lab.report.attempts\n  lab/bench/targets.py has the names"
        )
    return Written(note, limits, attempts)
