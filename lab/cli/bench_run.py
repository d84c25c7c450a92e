"""What every part of `bench` does around its measurement: device, roofs, store, text, exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsv4.runtime.device import open_device
from lab.bench.measured import Measured, Pair
from lab.bench.roofs import Roofs, measure_roofs
from lab.cli import bench_text, exit_codes, settings, text
from lab.cli.exit_codes import ExitCode
from lab.record.comparison import SLOWER
from lab.record.digests import stamp
from lab.record.environment import summary_line
from lab.recording import Recorder
from lab.result import FAIL, PASS

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(slots=True)
class BenchRun:
    """One invocation: what it runs on, and what was found so far."""

    device: Any
    recorder: Recorder
    seed: int
    roofs: Roofs | None = None
    found: list[Measured] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, backend: str, no_record: bool) -> BenchRun:
        """Open the device and the record."""
        chosen = settings.current()
        device = open_device(backend, index=chosen.device, seed=chosen.seed)
        recorder = Recorder(chosen.store, device, enabled=not no_record)
        text.say(f"env  {summary_line(recorder.env)}  seed {chosen.seed}")
        return cls(device, recorder, chosen.seed)

    @property
    def on_host(self) -> bool:
        """Whether kernels run on the CPU."""
        return bool(self.device.backend == "host")

    def measure_roofs(self, how: str = "") -> None:
        """Measure what memory gives now, and say what is timed how: as everything, or as told."""
        self.roofs = measure_roofs(self.device)
        text.say(bench_text.opening(self.roofs, how) + "\n")

    def engines(
        self,
        folder: Path,
        devices: Sequence[int],
        max_seq: int,
        arms: Sequence[Mapping[str, str | None]],
    ) -> list[Engine]:
        """An engine for each arm."""
        from lab.bench.engines import engines

        return engines(folder, devices, self.device.backend, max_seq, arms)

    @contextlib.contextmanager
    def keeping_what_is_done(self) -> Iterator[None]:
        """Ctrl-C inside the `with` ends it; what was found is kept and told."""
        try:
            yield
        except KeyboardInterrupt:
            self.codes.append(ExitCode.INTERRUPTED)
            text.note(f"interrupted; {len(self.found)} finished results are kept")

    def keep(self, found: Sequence[Measured], *pairs: Pair | None) -> None:
        """Keep what was measured, in the store as well."""
        for measured in found:
            self.found.append(measured)
            self.recorder.add_document(_for_store(measured), _samples(measured))
            # What a rival refuses or gets wrong is told, and is no failure of ours.
            if measured.facts["family"] != "rival":
                self.codes.append(_code(measured))
        for pair in pairs:
            if pair is not None:
                self.pairs.append(pair)
                slower = pair.time == SLOWER and not pair.rival
                self.codes += [ExitCode.SLOW] if slower else []

    def end(self, part: str, **more: Any) -> None:
        """Print the document or the tables and leave with the exit code."""
        code = exit_codes.worst(self.codes)
        self.recorder.finish(code)
        passed = sum(m.verdict == PASS for m in self.found)
        summary = {"timed": len(self.found), "pass": passed, "fail": len(self.found) - passed}
        if settings.current().json:
            text.emit_json(
                "bench",
                part=part,
                env=self.recorder.env,
                roofs=self.roofs.to_json() if self.roofs else None,
                summary=summary,
                run=self.recorder.run_id,
                exit_codes=sorted(set(map(int, self.codes))),
                results=[m.to_json() for m in self.found],
                pairs=[p.to_json() for p in self.pairs],
                **more,
            )
        else:
            self._show()
        raise click.exceptions.Exit(code)

    def _show(self) -> None:
        text.say(bench_text.table(self.found))
        for measured in self.found:
            if more := bench_text.more_of(measured):
                text.say(f"\n{more}")
            for reason in _why(measured):
                text.say(f"  {measured.name}: {reason}")
        if self.pairs:
            text.say("\n" + bench_text.pairs(self.pairs))
        number = self.recorder.run_id
        record = f"  (record {number:04d})" if number is not None else ""
        failed = sum(m.verdict != PASS for m in self.found)
        text.say(f"\n{len(self.found)} timed, {failed} without a passing check{record}")


def _why(measured: Measured) -> list[str]:
    found = [str(r) for r in measured.facts.get("reasons") or []]
    if measured.facts.get("error"):
        found.append(str(measured.facts["error"]))
    return found + ([measured.doubt] if measured.doubt else [])


def _for_store(measured: Measured) -> dict[str, Any]:
    """The result under its kernel's name; an arm is part of the case, so that it has a history."""
    document = measured.to_json()
    if measured.arm:
        document["case"] = f"{document['case']} {bench_text.words(measured.arm)}"
    if document["family"] not in ("bench", "rival"):
        document |= stamp(str(document["kernel"]))
    return document


def _samples(measured: Measured) -> bytes | None:
    import numpy as np

    if measured.timing is None:
        return None
    return np.asarray(measured.timing.samples_s, "<f4").tobytes()


def _code(measured: Measured) -> int:
    if measured.verdict == PASS:
        return ExitCode.OK
    if measured.verdict == FAIL:
        return ExitCode.CONTRACT
    return exit_codes.code_for_name(str(measured.facts.get("error_class") or ""))
