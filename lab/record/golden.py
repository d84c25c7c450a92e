"""Golden digests: what each kernel's output bytes were when a person last agreed to them.

One line of `tests/golden/<family>.jsonl` for a kernel, case, seed, architecture and compiler. It
holds digests and metrics, no arrays. Kernels declared portable give the same bytes everywhere, so
their lines name no architecture and no compiler. A changed output is *pending* until a person
accepts it; a check never writes a golden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.errors import SpecError
from dsv4.runtime.device import Device
from dsv4.spec import KernelSpec
from lab.cases import Case, cases
from lab.record.digests import spec_digest
from lab.record.golden_files import SCHEMA, Key, Row, key_of, label_of, read, write
from lab.result import ERROR, CaseResult, case_key, places_of
from lab.result import FAIL as FAILED
from lab.run import RunOptions, run_case

SAME, FAIL, NEW, MISSING = "SAME", "FAIL", "NEW", "MISSING"
FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "golden"
PENDING: Final = Path(".lab") / "golden-pending.jsonl"
RATCHET: Final = 1.25  # how much the relative L2 error may grow while the bytes stay accepted
_ANY = "any"
_METRICS = ("identical", "n", "ulp_max", "ulp_real_max", "bias", "rel_l2", "bound_use",
            "ulp_histogram")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check. before: the golden, now: what ran; each None where it is not there."""

    verdict: str
    kernel: str
    label: str
    before: Row | None
    now: Row | None
    why: str

    def to_json(self) -> Row:
        """One element of check's `findings`."""
        return {
            "verdict": self.verdict,
            "kernel": self.kernel,
            "case": self.label,
            "why": self.why,
            "before": self.before,
            "now": self.now,
        }


def row_of(spec: KernelSpec, result: CaseResult, compiler: str) -> Row:
    """The golden of one result."""
    place = (_ANY, _ANY) if spec.portable else (result.arch, compiler)
    outputs = [o.to_json() for o in result.outputs]
    return {
        "schema": SCHEMA,
        "kernel": spec.name,
        "case": result.case,
        "axes": dict(result.axes),
        "seed": result.seed,
        "arch": place[0],
        "compiler": place[1],
        "spec_digest": spec_digest(spec),
        "input_digest": result.input_digest,
        "output_digest": result.output_digest,
        "verdict": result.verdict,
        "outputs": {
            o["name"]: {k: _filled(o[k]) if k == "ulp_histogram" else o[k] for k in _METRICS}
            for o in outputs
        },
    }


def compiler_of(device: Device) -> str:
    """The compiler that makes this device's kernels, with its version."""
    if device.backend == "cuda":
        from dsv4.runtime.nvrtc import nvrtc_version

        return f"nvrtc {nvrtc_version()}"
    from dsv4.runtime.host_compiler import find_compiler

    return find_compiler().identity.splitlines()[0]


def check(
    work: Iterable[tuple[KernelSpec, Case]], folder: Path, device: Device, seed: int
) -> Iterator[Finding]:
    """A finding for each case: SAME, FAIL with what moved, or NEW.

    Errors: CompileError; SpecError for a damaged golden.
    """
    compiler = compiler_of(device)
    known: dict[str, dict[Key, Row]] = {}
    for spec, case in work:
        goldens = known.setdefault(spec.family, read(folder / f"{spec.family}.jsonl"))
        result = run_case(spec, case, device, RunOptions(seed=seed, time=False, relaunch=2))
        yield _judged(spec, case, result, goldens, compiler)


def accepted(specs: Iterable[KernelSpec], folder: Path, device: Device) -> list[Row]:
    """The goldens of these kernels that speak of this device: its architecture and compiler, or
    any.

    Errors: SpecError when there are none, or for a damaged golden.
    """
    here = {(_ANY, _ANY), (device.arch, compiler_of(device))}
    names = {spec.name: spec.family for spec in specs}
    files = [folder / f"{family}.jsonl" for family in dict.fromkeys(names.values())]
    found = [
        row
        for file in files
        for row in read(file).values()
        if row["kernel"] in names and (row["arch"], row["compiler"]) in here
    ]
    if not found:
        raise SpecError(
            f"no golden of {', '.join(names)} was accepted for {device.arch},"
            f" {compiler_of(device)}\n"
            f"  looked into {', '.join(f.name for f in files)} in {folder}\n"
            "  make one with: dsv4-lab golden check, then dsv4-lab golden review"
        )
    return found


def missing(specs: Sequence[KernelSpec], folder: Path) -> list[Finding]:
    """Goldens of these kernels whose case is no longer there."""
    found = []
    for spec in specs:
        labels = {case_key(c.name, c.axes) for c in cases(spec.name)}
        for row in read(folder / f"{spec.family}.jsonl").values():
            if row["kernel"] == spec.name and label_of(row) not in labels:
                why = "the kernel has no such case any more; golden prune takes the line out"
                found.append(Finding(MISSING, spec.name, label_of(row), row, None, why))
    return found


def accept(folder: Path, rows: Iterable[Row], families: Mapping[str, str]) -> list[Path]:
    """Put rows into the goldens of their families; the changed files.

    Only a result that holds its contract is accepted. Errors: SpecError.
    """
    by_family: dict[str, list[Row]] = {}
    for row in rows:
        if row["verdict"] != "PASS":
            raise SpecError(
                f"{row['kernel']} {label_of(row)} cannot be accepted: its verdict is"
                f" {row['verdict']}\n  a golden holds its contract; correct the kernel first"
            )
        by_family.setdefault(families[row["kernel"]], []).append(row)
    changed = []
    for family, new in by_family.items():
        path = folder / f"{family}.jsonl"
        write(path, {**read(path), **{key_of(r): r for r in new}}.values())
        changed.append(path)
    return changed


def keep_pending(found: Iterable[Finding]) -> int:
    """How many findings of a check are pending now; what is the same again no longer is."""
    rows = read(PENDING)
    count = 0
    for finding in found:
        if finding.now is None:
            continue
        key = key_of(finding.now)
        rows.pop(key, None)
        if finding.verdict != SAME:
            rows[key] = finding.now
            count += 1
    write(PENDING, rows.values())
    return count


def drop_pending(done: Sequence[Row]) -> None:
    """These rows are decided."""
    write(PENDING, (r for r in read(PENDING).values() if r not in done))


def prune(folder: Path, specs: Sequence[KernelSpec]) -> list[Row]:
    """Goldens taken out: of kernels and cases that are gone, or of another declaration."""
    current = {
        s.name: (spec_digest(s), {case_key(c.name, c.axes) for c in cases(s.name)}) for s in specs
    }
    gone: list[Row] = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == "portable.jsonl":
            continue
        rows = read(path)
        stale = [r for r in rows.values() if not _is_current(r, current)]
        if stale:
            write(path, (r for r in rows.values() if r not in stale))
            gone += stale
    return gone


def _judged(
    spec: KernelSpec, case: Case, result: CaseResult, goldens: Mapping[Key, Row], compiler: str
) -> Finding:
    now = row_of(spec, result, compiler)
    before = goldens.get(key_of(now))
    if result.verdict == ERROR:
        return Finding(FAIL, spec.name, case.label, before, None, result.error.splitlines()[0])
    if before is None:
        why = f"no golden for arch {now['arch']}, compiler {now['compiler']}"
        return Finding(NEW, spec.name, case.label, None, now, why)
    why = _moved(before, now)
    if why and result.verdict == FAILED:
        why = "; ".join([why, *places_of(o.to_json() for o in result.outputs)])
    return Finding(FAIL if why else SAME, spec.name, case.label, before, now, why)


def _moved(before: Row, now: Row) -> str:
    """What differs from the golden, in one sentence; "" when nothing does."""
    if before["input_digest"] != now["input_digest"]:
        return "the case's inputs changed, so its golden says nothing"
    if before["output_digest"] != now["output_digest"]:
        parts = [
            f"{name}: {_share(before['outputs'].get(name, {}))} -> {_share(o)} as the oracle,"
            f" max ulp {before['outputs'].get(name, {}).get('ulp_max')} -> {o['ulp_max']}"
            for name, o in now["outputs"].items()
        ]
        return f"output bytes changed; {'; '.join(parts)}"
    if before["verdict"] != now["verdict"]:
        return f"the verdict was {before['verdict']} and is {now['verdict']}"
    for name, output in now["outputs"].items():
        old = before["outputs"].get(name, {}).get("rel_l2")
        if _number(output["rel_l2"]) > RATCHET * _number(old):
            return f"{name}: rel-l2 grew from {old} to {output['rel_l2']} on the same bytes"
    return ""


def _is_current(row: Row, current: Mapping[str, tuple[str, set[str]]]) -> bool:
    digest, labels = current.get(row["kernel"], ("", set()))
    return row["spec_digest"] == digest and label_of(row) in labels


def _share(output: Mapping[str, Any]) -> str:
    return f"{output.get('identical')}/{output.get('n')}"


def _filled(histogram: Mapping[str, int]) -> dict[str, int]:
    return {bucket: n for bucket, n in histogram.items() if n}


def _number(value: Any) -> float:
    return float(value) if value is not None else float("inf")
