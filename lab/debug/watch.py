"""Runs a kernel again whenever its source, or a header that it includes, is saved.

Polls times and sizes of the include closure: no dependency, and it works on every file system.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dsv4.errors import CompileError
from dsv4.runtime.device import Device
from dsv4.runtime.sources import cuda_root, forget_sources, include_closure
from dsv4.spec import KernelSpec
from lab.cases import Case
from lab.result import PASS, CaseResult
from lab.run import RunOptions, run_case

POLL_S: Final = 0.2
Work = list[tuple[KernelSpec, Case]]


@dataclass(frozen=True, slots=True)
class Round:
    """One round over all cases. results by kernel and label; problem: why there are none."""

    number: int
    changed: tuple[Path, ...]
    results: dict[tuple[str, str], CaseResult]
    problem: str = ""

    @property
    def green(self) -> bool:
        """Whether every case passed."""
        return not self.problem and all(r.verdict == PASS for r in self.results.values())


@dataclass(frozen=True, slots=True)
class Delta:
    """How one case changed from the round before: a line for people. quiet: nothing moved."""

    kernel: str
    label: str
    before: CaseResult | None
    after: CaseResult

    @property
    def quiet(self) -> bool:
        """Whether verdict and bytes are what they were."""
        return (
            self.before is not None
            and self.before.verdict == self.after.verdict
            and self.before.output_digest == self.after.output_digest
        )

    def text(self) -> str:
        """Verdict, identical share, use of the bound and time, before and after."""
        old, new = self.before, self.after
        parts = [_arrow(old.verdict if old else None, new.verdict)]
        if new.error:
            return f"{parts[0]}  {new.error.splitlines()[0]}"
        parts += [f"same {_arrow(_same(old), _same(new))}", f"use {_arrow(_use(old), _use(new))}"]
        if new.timing is not None:
            parts.append(f"time {_arrow(_time(old), _time(new))}")
        if not self.quiet and old is not None and old.verdict == new.verdict:
            parts.append("other bytes")
        parts += [o.patterns[0] for o in new.outputs if o.patterns]
        return "  ".join(parts)


def rounds(
    work: Work,
    device: Device,
    options: RunOptions,
    *,
    bench: bool,
    stop: threading.Event,
) -> Iterator[Round]:
    """The first round at once, then one after each save; ends when `stop` is set.

    bench: time the first case of each round.
    """
    families = sorted({spec.family for spec, _ in work})
    state = _state(families)
    yield _run(work, device, options, bench, 1, ())
    number = 1
    while not stop.wait(POLL_S):
        now = _state(families)
        changed = tuple(sorted(p for p in now.keys() | state.keys() if now.get(p) != state.get(p)))
        if not changed:
            continue
        state, number = now, number + 1
        forget_sources()
        yield _run(work, device, options, bench, number, changed)


def deltas(before: Round | None, after: Round) -> list[Delta]:
    """Every case beside what it was in the last round that ran."""
    old = before.results if before is not None else {}
    return [Delta(*key, old.get(key), result) for key, result in after.results.items()]


def watched(families: Sequence[str]) -> list[Path]:
    """The sources of these families and all they include; a source alone while it is broken."""
    found: set[Path] = set()
    for family in families:
        path = cuda_root() / f"{family}.cu"
        try:
            found |= set(include_closure(path))
        except CompileError:
            found.add(path)
    return sorted(found)


def _state(families: Sequence[str]) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in watched(families):
        try:
            facts = path.stat()
        except FileNotFoundError:  # an editor is replacing it right now
            continue
        found[path] = (facts.st_mtime_ns, facts.st_size)
    return found


def _run(
    work: Work,
    device: Device,
    options: RunOptions,
    bench: bool,
    number: int,
    changed: tuple[Path, ...],
) -> Round:
    results: dict[tuple[str, str], CaseResult] = {}
    for index, (spec, case) in enumerate(work):
        chosen = replace(options, time=bench and index == 0)
        try:
            results[spec.name, case.label] = run_case(spec, case, device, chosen)
        except CompileError as error:
            return Round(number, changed, {}, str(error))
    return Round(number, changed, results)


def _arrow(old: str | None, new: str) -> str:
    return new if old in (None, "-", new) else f"{old} -> {new}"


def _same(result: CaseResult | None) -> str:
    if result is None or not result.outputs:
        return "-"
    n = sum(o.n for o in result.outputs)
    return f"{sum(o.identical for o in result.outputs)}/{n}"


def _use(result: CaseResult | None) -> str:
    return f"{max((o.bound_use for o in result.outputs), default=0.0):.2f}" if result else "-"


def _time(result: CaseResult | None) -> str:
    if result is None or result.timing is None:
        return "-"
    return f"{1e6 * result.timing.median_s:.1f} us"
