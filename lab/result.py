"""What one run of one case found, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.arrays import Damage
from lab.compare.diff import OutputDiff
from lab.measure.timing import Timing

PASS, FAIL, ERROR = "PASS", "FAIL", "ERROR"


def case_key(case: str, axes: Mapping[str, int]) -> str:
    """Case name and axes in alphabetical order: the same for a result and its stored document."""
    return "-".join([case, *(f"{k}={axes[k]}" for k in sorted(axes))])


def places_of(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where each output document that broke its contract first did, and what all its wrong elements
    have in common.
    """
    found = []
    for output in outputs:
        if output["pass"] or not output["first"]:
            continue
        place = " ".join(f"{axis}={at}" for axis, at in output["first"]["where"].items())
        found.append(
            ": ".join([f"{output['name']} first wrong at {place}", *output["patterns"][:1]])
        )
    return found


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Everything one run of one case found."""

    kernel: str
    family: str
    case: str
    axes: Mapping[str, int]
    backend: str
    mode: str
    arch: str
    seed: int
    verdict: str
    reasons: tuple[str, ...] = ()
    guards: Mapping[str, Damage] = field(default_factory=dict)
    inputs_changed: tuple[str, ...] = ()
    relaunch_identical: bool = True
    relaunches: int = 0
    batch_identical: bool | None = None
    timing: Timing | None = None
    size_bytes: int = 0
    flops: int = 0
    roof: float | None = None
    outputs: tuple[OutputDiff, ...] = ()
    what_if: tuple[OutputDiff, ...] = ()
    input_digest: str = ""
    output_digest: str = ""
    build: Mapping[str, Any] | None = None
    error: str = ""
    error_class: str = ""

    @property
    def guards_ok(self) -> bool:
        """Whether every guard byte of every array survived."""
        return not any(d.any for d in self.guards.values())

    @property
    def inputs_ok(self) -> bool:
        """Whether arrays that the kernel only reads kept their bytes."""
        return not self.inputs_changed

    @property
    def bandwidth(self) -> float | None:
        """Counted bytes a second."""
        return self.size_bytes / self.timing.median_s if self.timing else None

    @property
    def label(self) -> str:
        """Case name and axes."""
        return "-".join([self.case, *(f"{k}={v}" for k, v in self.axes.items())])

    def to_json(self) -> dict[str, Any]:
        """One element of the `results` list of kernel-diff's document."""
        bandwidth = self.bandwidth
        return {
            "kernel": self.kernel,
            "family": self.family,
            "case": self.case,
            "axes": dict(self.axes),
            "backend": self.backend,
            "mode": self.mode,
            "arch": self.arch,
            "seed": self.seed,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "guards_ok": self.guards_ok,
            "inputs_ok": self.inputs_ok,
            "relaunch_identical": self.relaunch_identical,
            "relaunches": self.relaunches,
            "batch_identical": self.batch_identical,
            "time_s": self.timing.median_s if self.timing else None,
            "time_noise": self.timing.noise if self.timing else None,
            "time_cold": self.timing.cold if self.timing else None,
            "time_samples": len(self.timing.samples_s) if self.timing else 0,
            "bytes": self.size_bytes,
            "flops": self.flops,
            "bandwidth_fraction": bandwidth / self.roof if bandwidth and self.roof else None,
            "input_digest": self.input_digest,
            "output_digest": self.output_digest,
            "error": self.error or None,
            "error_class": self.error_class or None,
            "outputs": [o.to_json() for o in self.outputs],
        }
