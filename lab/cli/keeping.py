"""What kernel-diff keeps of a run: results in the store, failing cases in files."""

from __future__ import annotations

from pathlib import Path

from dsv4.errors import StoreError
from lab import session
from lab.casefile import save_case
from lab.cli import text
from lab.recording import Recorder
from lab.result import PASS, CaseResult


def keep(recorder: Recorder, result: CaseResult, file: Path | None) -> StoreError | None:
    """What kept a result out of the store; then no further one is run, and this one is shown."""
    try:
        recorder.add(result, case_file=file)
    except StoreError as error:
        recorder.abandon()
        text.warn(f"{error}\n  the run ends here; the result below is in no record")
        return error
    return None


def finish(recorder: Recorder, code: int) -> StoreError | None:
    """What kept the run from being marked as finished; its results are stored all the same."""
    try:
        recorder.finish(code)
    except StoreError as error:
        recorder.abandon()
        text.warn(str(error))
        return error
    return None


def save(folder: Path, work: session.Work, result: CaseResult) -> Path | None:
    """The file that replays a case that did not pass; None for one that did."""
    if result.verdict == PASS:
        return None
    spec, case = next(
        (s, c) for s, c in work if s.name == result.kernel and c.label == result.label
    )
    try:
        return save_case(folder, spec, case, result)
    except OSError as error:
        text.note(f"the failing case could not be written to {folder}: {error}")
        return None
