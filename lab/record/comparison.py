"""What changed between two sides: bits, contracts, time and generated code, case by case.

Times are compared as intervals from the fastest sample to the third quartile: SLOWER and FASTER
need a gap between the two beyond the threshold, and where the clock is known the same verdict in
cycles; what is neither that nor within the threshold is AMBIGUOUS.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dsv4.errors import SpecError
from lab.record.sides import Entry, Interval, Side

SAME, FAIL, NEW, MISSING = "SAME", "FAIL", "NEW", "MISSING"
FASTER, SLOWER, AMBIGUOUS = "FASTER", "SLOWER", "AMBIGUOUS"
FEWEST_SAMPLES: Final = 3
DEFAULT_SLOWER: Final = 0.05
_CODEGEN: Final = {"regs": "registers", "smem": "shared", "local_bytes": "spills",
                   "sass_bytes": "code"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much slower is slower: a share for every kernel, and exceptions by kernel."""

    default: float = DEFAULT_SLOWER
    kernels: Mapping[str, float] | None = None

    def of(self, kernel: str) -> float:
        """The share for one kernel."""
        return (self.kernels or {}).get(kernel, self.default)


@dataclass(frozen=True, slots=True)
class Change:
    """One case on both sides.

    bits: SAME, FAIL (other bytes on the same inputs), NEW, MISSING, AMBIGUOUS (other inputs).
    contract: the verdicts, as "PASS" or "PASS -> FAIL". time: one of the time verdicts, "" without
    timings. ratio: median of B over median of A. codegen: changed figures, (before, after) by name.
    why: sentences on what to look at.
    """

    kernel: str
    label: str
    place: str
    bits: str
    before: str
    after: str
    time: str = ""
    ratio: float | None = None
    a_s: float | None = None
    b_s: float | None = None
    codegen: Mapping[str, tuple[int, int]] | None = None
    why: tuple[str, ...] = ()

    @property
    def contract_broken(self) -> bool:
        """Whether the later side does not hold its contract."""
        return self.after not in ("PASS", MISSING)

    @property
    def spills_more(self) -> bool:
        """Whether the later build spills more bytes."""
        low, high = (self.codegen or {}).get("spills", (0, 0))
        return high > low

    @property
    def quiet(self) -> bool:
        """Whether nothing needs to be looked at."""
        return self.bits == SAME and self.before == self.after and self.time in ("", SAME)

    def to_json(self) -> dict[str, Any]:
        """One element of compare's `changes`."""
        return {
            "kernel": self.kernel,
            "case": self.label,
            "place": self.place,
            "bits": self.bits,
            "contract": [self.before, self.after],
            "time": self.time or None,
            "time_ratio": self.ratio,
            "time_s": [self.a_s, self.b_s],
            "codegen": {k: list(v) for k, v in (self.codegen or {}).items()},
            "why": list(self.why),
        }


def read_thresholds(path: Path | None) -> Thresholds:
    """Thresholds of a TOML file: `[default]` and one table a kernel, each with `slower = 0.05`.

    Errors: SpecError naming the key that is no threshold.
    """
    if path is None:
        return Thresholds()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpecError(
            f"--threshold {path} cannot be read ({error})\n  write [default] and slower = 0.05"
        ) from None
    found: dict[str, float] = {}
    for kernel, table in tables.items():
        share = table.get("slower") if isinstance(table, dict) and len(table) == 1 else None
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 10:
            raise SpecError(
                f"--threshold {path}: [{kernel}] holds {table!r}\n"
                "  a table is [default] or a kernel, with one line such as slower = 0.05"
            )
        found[kernel] = float(share)
    return Thresholds(found.pop("default", DEFAULT_SLOWER), found)


def changes(a: Side, b: Side, thresholds: Thresholds) -> list[Change]:
    """Every case of either side, in the order of B and then what is only in A."""
    # Runs of one place each are compared with each other, wherever they were made.
    across = len(a.places) == len(b.places) == 1 and a.places != b.places
    before = {_key(e, across): e for e in a.entries}
    after = {_key(e, across): e for e in b.entries}
    comparable = not across and a.device == b.device
    found = []
    for key, entry in after.items():
        old = before.get(key)
        found.append(_new(entry) if old is None else _both(old, entry, thresholds, comparable))
    found += [_missing(e) for key, e in before.items() if key not in after]
    return found


def time_verdict(a: Interval | None, b: Interval | None, slower: float) -> tuple[str, str]:
    """The verdict of B against A, and what to do when it is AMBIGUOUS."""
    if a is None or b is None:
        return "", ""
    if min(a.n, b.n) < FEWEST_SAMPLES:
        return AMBIGUOUS, f"{min(a.n, b.n)} samples say nothing; time again with more"
    seconds = _by_interval(a, b, slower)
    if a.sm_mhz is None or b.sm_mhz is None:
        return seconds, _next_step(seconds)
    cycles = _by_interval(_in_cycles(a), _in_cycles(b), slower)
    if seconds == cycles:
        return seconds, _next_step(seconds)
    return AMBIGUOUS, (
        f"{seconds} in seconds and {cycles} in cycles: the clock moved from {a.sm_mhz:g} to"
        f" {b.sm_mhz:g} MHz; time both again on a cool card"
    )


def _by_interval(a: Interval, b: Interval, slower: float) -> str:
    if b.min_s > a.q3_s * (1 + slower):
        return SLOWER
    if a.min_s > b.q3_s * (1 + slower):
        return FASTER
    within = abs(b.median_s - a.median_s) <= slower * a.median_s
    return SAME if within else AMBIGUOUS


def _in_cycles(t: Interval) -> Interval:
    hz = (t.sm_mhz or 0.0) * 1e6
    return replace(t, min_s=t.min_s * hz, median_s=t.median_s * hz, q3_s=t.q3_s * hz)


def _next_step(verdict: str) -> str:
    if verdict != AMBIGUOUS:
        return ""
    return "the intervals overlap; time both sides again, one after the other, with more samples"


def _key(e: Entry, across: bool) -> tuple[str, str, int, str]:
    return (e.kernel, e.label, e.seed, "") if across else e.key


def _both(a: Entry, b: Entry, thresholds: Thresholds, comparable: bool) -> Change:
    why: list[str] = []
    if a.input_digest != b.input_digest:
        bits = AMBIGUOUS
        why.append("the inputs differ, so the bytes cannot be compared: the case itself changed")
    else:
        bits = SAME if a.output_digest == b.output_digest else FAIL
    if bits == FAIL:
        why += _where(b)
    if b.verdict != "PASS":
        why += [str(r) for r in b.result.get("reasons") or []]
        why += [str(b.result["error"]).splitlines()[0]] if b.result.get("error") else []
    time, ratio, advice = "", None, ""
    if comparable:
        time, advice = time_verdict(a.time, b.time, thresholds.of(b.kernel))
    why += [advice] if advice else []
    if a.time and b.time and comparable:
        ratio = b.time.median_s / a.time.median_s if a.time.median_s else None
    return Change(
        kernel=b.kernel,
        label=b.label,
        place=b.place if a.place == b.place else f"{a.place} -> {b.place}",
        bits=bits,
        before=a.verdict,
        after=b.verdict,
        time=time,
        ratio=ratio,
        a_s=a.time.median_s if a.time else None,
        b_s=b.time.median_s if b.time else None,
        codegen=_codegen(a.build, b.build),
        why=tuple(why),
    )


def _where(b: Entry) -> list[str]:
    """How far B's outputs are from the oracle, so that a changed bit can be weighed."""
    found = []
    for output in b.result.get("outputs") or []:
        first = output.get("first") or {}
        place = " ".join(f"{k}={v}" for k, v in (first.get("where") or {}).items())
        found.append(
            f"{output['name']}: {output['identical']} of {output['n']} as the oracle,"
            f" max {output['ulp_max']} ulp, bound use {_short(output['bound_use'])}"
            + (f", first other byte at {place}" if place else "")
        )
    return found


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _codegen(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {
        name: (int(a[key]), int(b[key]))
        for key, name in _CODEGEN.items()
        if a.get(key) is not None and b.get(key) is not None and a[key] != b[key]
    }


def _new(e: Entry) -> Change:
    why = ("only the second side has it",)
    return Change(e.kernel, e.label, e.place, NEW, MISSING, e.verdict, why=why)


def _missing(e: Entry) -> Change:
    why = ("only the first side has it",)
    return Change(e.kernel, e.label, e.place, MISSING, e.verdict, MISSING, why=why)
