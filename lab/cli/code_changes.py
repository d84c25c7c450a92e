"""What `compile --diff` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lab.cli import settings, text
from lab.cli.exit_codes import ExitCode
from lab.tools.codegen import SAME, Build, CodeChange, compare_builds


def show_code_changes(work: Sequence[Build], revision: str) -> int:
    """Compare every build with a revision's, print, and return the exit code: 5 for a change."""
    found: list[CodeChange] = []
    with text.progress("compile", len(work)) as bar:
        for change in compare_builds(work, revision):
            found.append(change)
            bar.update(1)
    counts = Counter(c.verdict for c in found)
    if settings.current().json:
        text.emit_json(
            "compile",
            against=revision,
            summary=dict(counts),
            builds=[c.to_json() for c in found],
        )
    else:
        _print(found)
        said = ", ".join(f"{n} {text.verdict(word)}" for word, n in counts.items())
        text.say(f"{len(found)} builds against {revision}: {said}")
    return ExitCode.OK if set(counts) <= {SAME} else ExitCode.BITS


def _print(found: Sequence[CodeChange]) -> None:
    changed = [c for c in found if c.verdict != SAME]
    if not changed:
        return
    header = ("kernel", "arch", "constants", "", "registers", "shared", "spills", "code bytes")
    text.say(text.table(header, [_row(c) for c in changed]))
    for change in changed:
        if change.problem:
            text.say(f"  {change.kernel} {change.arch}: {change.problem}")
        if change.listing:
            text.say(f"\n{change.kernel} {change.arch}\n{change.listing}")


def _row(c: CodeChange) -> tuple[object, ...]:
    constants = " ".join(f"{k}={v}" for k, v in c.constants.items())
    names = ("registers", "shared_bytes", "spill_bytes", "code_bytes")
    return (c.kernel, c.arch, constants, text.verdict(c.verdict), *(_pair(c, n) for n in names))


def _pair(c: CodeChange, name: str) -> str:
    old, new = (getattr(side, name) if side else None for side in (c.before, c.after))
    return f"{new}" if old == new else f"{'-' if old is None else old} -> {new}"
