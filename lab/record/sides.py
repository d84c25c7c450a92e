"""Results of a run, a revision or a file, brought into one shape so that two can be compared."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import SpecError
from lab import revisions
from lab.record.exchange import import_jsonl
from lab.record.store import Store
from lab.result import case_key

WORKING_TREE = "working tree"


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds of one launch: the fastest sample, the median, the third quartile, how many."""

    min_s: float
    median_s: float
    q3_s: float
    n: int
    sm_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One result of one side. place: where it ran, such as "sm_90a" or "host run"."""

    kernel: str
    label: str
    seed: int
    place: str
    verdict: str
    input_digest: str
    output_digest: str
    time: Interval | None
    build: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What two sides are joined by."""
        return (self.kernel, self.label, self.seed, self.place)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its name, the device it was made on, its results."""

    name: str
    device: str
    entries: tuple[Entry, ...]

    @property
    def places(self) -> set[str]:
        """Where its results ran."""
        return {e.place for e in self.entries}


def open_side(name: str, store: Path, selection: Sequence[str]) -> Side:
    """The side that a word names: a record's number, "working tree", a file, or a git revision.

    selection: arguments of kernel-diff for a side that has to be run now. Errors: SpecError for a
    word that is none of these; StoreError for a record that is not there.
    """
    bare = name.removeprefix("record:").removeprefix("build:").removeprefix("file:")
    if bare == WORKING_TREE:
        return _run(WORKING_TREE, None, selection)
    if name.startswith("file:") or Path(bare).is_file():
        return from_file(Path(bare))
    if bare.isdigit() and not name.startswith("build:") and len(bare) < 7:
        return from_record(store, int(bare))
    if revisions.is_revision(bare):
        return _run(bare, bare, selection)
    raise SpecError(
        f"compare {name!r}: it is no record number, no file and no revision of this checkout\n"
        "  see the records with: dsv4-lab records list"
    )


def from_record(path: Path, run: int) -> Side:
    """A stored run. Errors: StoreError when the store or the run is not there."""
    store = Store.open_existing(path)
    if store is None:
        raise SpecError(
            f"compare {run}: there is no store at {path}\n  make one: dsv4-lab kernel-diff"
        )
    with store:
        facts = store.run(run)
        device = str(facts["env"].get("device") or "")
        entries = tuple(_entry(row["json"], _timing(store, row)) for row in store.results(run))
    return Side(f"record {run}", device, entries)


def from_file(path: Path) -> Side:
    """A `--json` document of kernel-diff, or lines of `records export`.

    Errors: SpecError when it is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
        first = json.loads(text.splitlines()[0]) if text.startswith('{"') else {}
        if "record" in first:
            return _from_lines(path, text.splitlines())
        document = json.loads(text)
        rows = document["results"]
        device = str((document.get("env") or {}).get("device") or "")
        return Side(str(path), device, tuple(_entry(row, None) for row in rows))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SpecError(
            f"compare {path}: it cannot be read as results ({error})\n"
            "  write one with: dsv4-lab --json kernel-diff > results.json"
        ) from None


def _from_lines(path: Path, lines: Iterable[str]) -> Side:
    with tempfile.TemporaryDirectory(prefix="dsv4-lab-") as folder:
        place = Path(folder) / "lab.db"
        with Store.open(place) as store:
            import_jsonl(store, lines)
            runs = [r["id"] for r in store.runs()]
        sides = [from_record(place, run) for run in runs]
    entries = {e.key: e for side in sides for e in side.entries}
    return Side(str(path), sides[-1].device if sides else "", tuple(entries.values()))


def _run(name: str, revision: str | None, selection: Sequence[str]) -> Side:
    """kernel-diff on the sources of a revision (None: the ones here), into a store of its own."""
    with tempfile.TemporaryDirectory(prefix="dsv4-lab-") as folder:
        place = Path(folder) / "lab.db"
        arguments = ["--quiet", "--store", str(place), "kernel-diff", *selection]
        arguments += ["--save-failing", str(Path(folder) / "failing")]
        if revision is None:
            done = revisions.run_with(revisions_root(), arguments)
        else:
            with revisions.sources_at(revision, asked=f"compare {name}") as sources:
                done = revisions.run_with(sources, arguments)
        if not place.exists():
            raise SpecError(
                f"compare {name}: its run gave no results (exit {done.returncode})\n"
                f"  {done.stderr.strip()[-400:]}"
            )
        side = from_record(place, 1)
    return Side(name, side.device, side.entries)


def revisions_root() -> Path:
    """The sources that this process itself uses."""
    from dsv4.runtime.sources import cuda_root

    return cuda_root()


def _timing(store: Store, row: Mapping[str, Any]) -> Interval | None:
    raw = store.samples(row["id"])
    if not raw:
        return None
    samples = sorted(struct.unpack(f"<{len(raw) // 4}f", raw))
    last = len(samples) - 1
    timing = row["json"].get("timing") or {}
    return Interval(
        min_s=samples[0],
        median_s=(samples[last // 2] + samples[(last + 1) // 2]) / 2,
        q3_s=samples[round(last * 0.75)],
        n=len(samples),
        sm_mhz=timing.get("sm_mhz"),
    )


def _entry(row: Mapping[str, Any], time: Interval | None) -> Entry:
    if time is None and row.get("time_s"):
        # A document keeps the median and the half-distance of the quartiles, not the samples.
        half = float(row["time_s"]) * float(row.get("time_noise") or 0.0)
        low, high = float(row["time_s"]) - half, float(row["time_s"]) + half
        time = Interval(low, float(row["time_s"]), high, int(row.get("time_samples") or 0))
    cuda = row.get("backend") == "cuda"
    return Entry(
        kernel=str(row["kernel"]),
        label=case_key(_case(row), row.get("axes") or {}),
        seed=int(row.get("seed") or 0),
        place=str(row.get("arch")) if cuda else f"{row.get('backend')} {row.get('mode') or 'run'}",
        verdict=str(row["verdict"]),
        input_digest=str(row.get("input_digest") or ""),
        output_digest=str(row.get("output_digest") or ""),
        time=time,
        build=row.get("build") or {},
        result=row,
    )


def _case(row: Mapping[str, Any]) -> str:
    """The case, with the arm that it was timed under; the store has it there already."""
    arm = " ".join(f"{k}={v}" for k, v in (row.get("arm") or {}).items())
    case = str(row["case"])
    return case if case.endswith(arm) else f"{case} {arm}"
