"""What a timing found, as data: a kernel's case, a layer, a step or a round under one arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.bench.clocks import Clock
from lab.bench.sampling import HOW_CUDA, HOW_HOST, Repeated, interval_of, spread
from lab.measure.timing import Timing
from lab.record.comparison import DEFAULT_SLOWER, time_verdict
from lab.result import FAIL, PASS, CaseResult

# What a roof can be exceeded by before the measurement itself is doubted.
_BEYOND_ROOF = 1.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One thing timed under one arm.

    facts: a result as the store keeps it (kernel, case, verdict, digests, ...). roof: bytes a
    second of the read-only stream. launches: launches in a sample. timed_by: how. verdict: of its
    contract; without PASS the time means nothing, and there is none.
    """

    facts: Mapping[str, Any]
    arm: Mapping[str, Any]
    verdict: str
    timing: Timing | None
    size_bytes: int
    roof: float | None
    clock: Clock
    launches: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_case(
        cls,
        result: CaseResult,
        arm: Mapping[str, Any],
        clock: Clock,
        again: Repeated | None,
        *,
        starts_early: bool = False,
    ) -> Measured:
        """What a kernel's case gave. starts_early: whether its launches begin before others end."""
        return cls(
            facts=result.to_json(),
            arm=dict(arm),
            verdict=result.verdict,
            timing=result.timing if result.verdict == PASS else None,
            size_bytes=result.size_bytes,
            roof=result.roof,
            clock=clock,
            launches=again.launches if again else 0,
            more={"starts_early": starts_early},
        )

    @classmethod
    def of_engine(
        cls,
        facts: Mapping[str, Any],
        arm: Mapping[str, Any],
        timing: Timing | None,
        clock: Clock,
        **counted: Any,
    ) -> Measured:
        """What an engine's work gave: it passed if no reasons speak against it.

        counted: size_bytes, roof, launches and more, as the fields of that name.
        """
        passed = not facts["reasons"]
        kept = timing if passed else None
        return cls(facts, arm, PASS if passed else FAIL, kept, clock=clock, **counted)

    @property
    def name(self) -> str:
        """Kernel and case for people."""
        axes = " ".join(f"{k}={v}" for k, v in (self.facts.get("axes") or {}).items())
        return f"{self.facts['kernel']} {self.facts['case']} {axes}".rstrip()

    @property
    def digest(self) -> str:
        """The digest of what it left."""
        return str(self.facts.get("output_digest") or "")

    @property
    def fraction(self) -> float | None:
        """Counted bytes a second over the roof of reading."""
        if self.timing is None or not self.roof:
            return None
        return self.size_bytes / self.timing.median_s / self.roof

    @property
    def doubt(self) -> str:
        """Why the measurement cannot be right; empty when nothing says so."""
        if self.timing is not None and self.timing.cold and (self.fraction or 0) > _BEYOND_ROOF:
            return "faster than memory: something was read from a cache, or bytes are overcounted"
        return ""

    def to_json(self) -> dict[str, Any]:
        """One element of the `results` of bench's document, and what the store keeps."""
        timing = self.timing
        found = {
            **self.facts,
            "arm": dict(self.arm),
            "verdict": self.verdict,
            "time_s": timing.median_s if timing else None,
            "time_noise": timing.noise if timing else None,
            "time_cold": timing.cold if timing else None,
            "time_samples": len(timing.samples_s) if timing else 0,
            "bytes": self.size_bytes,
            # In the store this is a share of the copy roof, as kernel-diff measures it.
            "bandwidth_fraction": None,
            "read_fraction": self.fraction,
            "doubt": self.doubt or None,
            "launches_per_sample": self.launches,
            "clock": self.clock.to_json(),
            "timed_by": HOW_CUDA if self.facts.get("backend") == "cuda" else HOW_HOST,
            **self.more,
        }
        if timing is not None:
            mode = "cold" if timing.cold else "warm"
            noise = {"mode": mode, "noise": timing.noise, "sm_mhz": self.clock.steady_mhz}
            found["timing"] = {**spread(timing), **noise}
        return found


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms of one thing. time: as `compare` says it of B against A; "" without two verdicts.

    same_bytes: whether both leave the same output; None where nobody compares that. rival: what A
    is, when it is none of ours.
    """

    name: str
    time: str
    ratio: float | None
    a_s: float | None
    b_s: float | None
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    why: str
    same_bytes: bool | None
    rival: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of the `pairs` of bench's document."""
        return {
            "name": self.name,
            "time": self.time or None,
            "ratio": self.ratio,
            "time_s": [self.a_s, self.b_s],
            "a": dict(self.a),
            "b": dict(self.b),
            "why": self.why or None,
            "same_bytes": self.same_bytes,
            "rival": self.rival or None,
        }


def pair_of(found: Sequence[Measured]) -> Pair | None:
    """The second of two arms against the first; None for one arm alone."""
    return paired(found[0], found[1]) if len(found) == 2 else None


def paired(a: Measured, b: Measured, slower: float = DEFAULT_SLOWER) -> Pair:
    """B against A, sampled in turns: SAME, FASTER, SLOWER or AMBIGUOUS where both hold."""
    same = a.digest == b.digest if a.digest and b.digest else None
    if a.timing is None or b.timing is None:
        broken = " and ".join(n for n, m in (("A", a), ("B", b)) if m.timing is None)
        why = f"{broken} did not pass, so there is no verdict on time"
        return Pair(a.name, "", None, None, None, a.arm, b.arm, why, same)
    verdict, why = time_verdict(interval_of(a.timing), interval_of(b.timing), slower)
    a_s, b_s = a.timing.median_s, b.timing.median_s
    return Pair(a.name, verdict, b_s / a_s, a_s, b_s, a.arm, b.arm, why, same)
