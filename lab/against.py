"""Other baselines than the oracle: an earlier record, reviewed digests, another build's bytes.

Each answers the same question: are this run's output bytes what they were there?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import SpecError
from lab import revisions
from lab.result import CaseResult, case_key

SAME, DIFFERENT, MISSING = "SAME", "DIFFERENT", "MISSING"
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Output digests by kernel, case label and seed, and where they come from."""

    source: str
    digests: Mapping[Key, tuple[str, str]]

    def verdict(self, result: CaseResult) -> str:
        """SAME or DIFFERENT bytes on the same inputs, or MISSING when there is no such entry."""
        key = (result.kernel, case_key(result.case, result.axes), result.seed)
        found = self.digests.get(key)
        if found is None or found[0] != result.input_digest:
            return MISSING
        return SAME if found[1] == result.output_digest else DIFFERENT


def from_documents(source: str, results: Iterable[Mapping[str, Any]]) -> Baseline:
    """A baseline from elements of kernel-diff's `results` list."""
    digests = {}
    for row in results:
        key = (row["kernel"], case_key(row["case"], row["axes"]), int(row["seed"]))
        digests[key] = (row["input_digest"], row["output_digest"])
    return Baseline(source, digests)


def from_file(path: Path) -> Baseline:
    """A baseline from a `--json` document or a JSONL file of results.

    Errors: SpecError when it cannot be read.
    """
    try:
        text = path.read_text()
        try:
            document = json.loads(text)
            rows = document["results"] if "results" in document else [document]
        except json.JSONDecodeError:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return from_documents(str(path), rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"--against file:{path} cannot be read as results ({error})\n"
            "  write one with: dsv4-lab --json kernel-diff > results.json"
        ) from None


def from_revision(revision: str, arguments: list[str]) -> Baseline:
    """A baseline from running another revision's `cuda/` sources on the same cases, now.

    Errors: SpecError when git does not know the revision or the run fails.
    """
    asked = f"--against build:{revision}"
    with revisions.sources_at(revision, asked=asked) as sources:
        run = revisions.run_with(sources, ["--json", "kernel-diff", "--no-record", *arguments])
        try:
            return from_documents(revision, json.loads(run.stdout)["results"])
        except (ValueError, KeyError):
            raise SpecError(
                f"{asked}: its run gave no results\n  {run.stderr.strip()[-400:]}"
            ) from None


def open_baseline(
    against: str,
    *,
    record: Callable[[str], Iterable[Mapping[str, Any]]],
    golden: Callable[[Path | None], Iterable[Mapping[str, Any]]],
    arguments: list[str],
) -> Baseline | None:
    """The baseline that `--against` names; None for the oracle.

    record gives the results of a stored run, golden the accepted digests of a folder (None: the
    checkout's). arguments select the same cases for `build:REV`.
    Errors: SpecError for an unknown form or an unreadable baseline.
    """
    kind, _, rest = against.partition(":")
    match kind:
        case "oracle":
            return None
        case "golden":
            return from_documents(against, golden(Path(rest) if rest else None))
        case "record" if rest:
            return from_documents(against, record(rest))
        case "build" if rest:
            return from_revision(rest, arguments)
        case "file" if rest:
            return from_file(Path(rest))
    raise SpecError(
        f"--against {against!r} is none of oracle, golden, golden:DIR, record:ID,"
        " build:REV, file:PATH"
    )
