"""Compares one output with its reference in every way at once, and says what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from dsv4.spec import Contract, Tile
from lab.compare import metrics, ulp
from lab.compare.census import Census, census, unwritten
from lab.compare.judge import Judgement, judge, label
from lab.compare.location import Location, locate, widths
from lab.compare.metrics import Lean, WorstRow
from lab.compare.pair import Mask, Pair, Raw, pair
from lab.compare.pattern import AxisPattern, axis_patterns, sentences
from lab.compare.resemblance import resemblances
from oracle.formats import Floats

# A lean this many standard deviations from a fair coin is worth a sentence.
_LEAN_Z = 8.0


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """All that is known about one output after one comparison.

    identical: elements with the reference's bytes. zero_signs: zeros of the wrong sign, which are
    no ulp apart. ulp_max: steps of the lattice; ulp_real_max: spacings from the unrounded value.
    unwritten: elements that held poison after both launches. unjudged: see `Judgement`.
    first: the first failing element, or else the first with other bytes.
    patterns: sentences on where and what the failing elements are; notes: on passing ones too.
    """

    name: str
    fmt: str
    contract: str
    because: str
    passed: bool
    reason: str
    n: int
    identical: int
    failing: int
    zero_signs: int
    ulp_max: int
    ulp_real_max: float
    ulp_histogram: dict[str, int]
    by_magnitude: dict[str, dict[str, int]]
    bias: Lean
    shrink: Lean
    rel_l2: float
    cos_gap: float
    bound_use: float
    unjudged: int
    unwritten: int
    census_got: Census
    census_ref: Census
    first: Location | None
    worst: tuple[WorstRow, ...]
    patterns: tuple[str, ...]
    axes: tuple[AxisPattern, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A document without NaN and infinity tokens: NaN is null, infinities are strings."""
        got, ref = self.census_got, self.census_ref
        document = {
            "name": self.name,
            "format": self.fmt,
            "contract": self.contract,
            "because": self.because,
            "pass": self.passed,
            "reason": self.reason,
            "n": self.n,
            "identical": self.identical,
            "failing": self.failing,
            "zero_signs": self.zero_signs,
            "ulp_max": self.ulp_max,
            "ulp_real_max": self.ulp_real_max,
            "ulp_histogram": self.ulp_histogram,
            "by_magnitude": self.by_magnitude,
            "bias": self.bias.mean,
            "bias_z": self.bias.z,
            "shrink": self.shrink.mean,
            "shrink_z": self.shrink.z,
            "rel_l2": self.rel_l2,
            "cos": 1.0 - self.cos_gap,
            "cos_gap": self.cos_gap,
            "bound_use": self.bound_use,
            "nan_got": got.nan,
            "nan_ref": ref.nan,
            "unwritten": self.unwritten,
            "unjudged": self.unjudged,
            "census": {"got": got, "ref": ref},
            "first": self.first,
            "worst": self.worst,
            "patterns": self.patterns,
            "axes": self.axes,
            "notes": self.notes,
        }
        return {key: jsonable(value) for key, value in document.items()}


@np.errstate(all="ignore")  # any bits may come; NaN and overflow are counted, not warned about
def compare(
    got: Raw,
    ref64: Raw,
    *,
    fmt: str,
    axes: tuple[str, ...],
    contract: Contract,
    magnitude: Floats | None = None,
    shape: Mapping[str, Any] | None = None,
    tile: Tile | None = None,
    again: Raw | None = None,
    name: str = "",
    top: int = 5,
) -> OutputDiff:
    """Judge and describe one output.

    Shapes: got as stored; ref64 likewise, as float64, integers or stored codes (of a packed format
    also with one element per value); magnitude as ref64, for contracts that need one.
    shape: axis sizes for the contract's expressions. tile: which block owns what.
    again: the same output of a second launch, poisoned with the second pattern; the first launch
    with the first. top: how many worst rows to keep.
    Errors: SpecError when reference, format, axes or contract do not fit the output.
    """
    both = pair(got, np.asarray(ref64), fmt, axes)
    verdict = judge(contract, both, magnitude, shape or {})
    never = _never_written(got, again, both)
    wrong = verdict.failing if never is None else verdict.failing | never
    missing = 0 if never is None else int(never.sum())
    failing = int(wrong.sum())
    buckets = ulp.bucket_of(both)
    bias, shrink = metrics.bias(both), metrics.shrink(both)
    return OutputDiff(
        name=name,
        fmt=fmt,
        contract=label(contract),
        because=contract.because,
        passed=verdict.passed and not missing,
        reason=_reason(verdict, missing),
        n=both.size,
        identical=metrics.identical(both),
        failing=failing,
        zero_signs=metrics.zero_signs(both),
        ulp_max=ulp.ulp_max(both),
        ulp_real_max=float(both.real.max(initial=0.0)),
        ulp_histogram=ulp.histogram(buckets),
        by_magnitude=ulp.by_magnitude(both, buckets),
        bias=bias,
        shrink=shrink,
        rel_l2=metrics.rel_l2(both),
        cos_gap=metrics.cos_gap(both),
        bound_use=verdict.bound_use,
        unjudged=verdict.unjudged,
        unwritten=missing,
        census_got=census(both.got, both.fmt),
        census_ref=census(both.rounded, both.fmt),
        first=_first(both, wrong, tile),
        worst=metrics.worst_rows(verdict.use, wrong, both.axes, top),
        patterns=(
            (*sentences(wrong, both.axes, widths(both, tile)), *resemblances(both, wrong))
            if failing
            else ()
        ),
        axes=axis_patterns(wrong, both.axes, widths(both, tile)),
        notes=_notes(bias, shrink),
    )


def _never_written(got: Raw, again: Raw | None, both: Pair) -> Mask | None:
    if again is None:
        return None
    mask = unwritten(got, again)
    return mask.repeat(both.packed, -1) if both.packed > 1 else mask


def _reason(verdict: Judgement, missing: int) -> str:
    return f"{verdict.reason}; {missing} were never written" if missing else verdict.reason


def _first(both: Pair, wrong: Mask, tile: Tile | None) -> Location | None:
    for mask in (wrong, both.differ):
        if mask.any():
            return locate(both, int(mask.reshape(-1).argmax()), tile)
    return None


def _notes(bias: Lean, shrink: Lean) -> tuple[str, ...]:
    """What a passing output may still hide."""
    found = []
    if abs(shrink.z) > _LEAN_Z:
        way = "small" if shrink.z < 0 else "large"
        text = f"magnitudes are {abs(shrink.mean):.2f} spacings too {way} on average"
        # Cutting off low bits loses half a spacing on average, and never more than one.
        cut = shrink.z < 0 and 0.25 < -shrink.mean < 0.75
        why = ": looks like low bits cut off instead of rounded" if cut else ""
        found.append(f"{text} (z {shrink.z:+.0f}){why}")
    if abs(bias.z) > _LEAN_Z and abs(bias.z) > abs(shrink.z):
        way = "down" if bias.z < 0 else "up"
        found.append(
            f"values lean {way} by {abs(bias.mean):.2f} spacings on average (z {bias.z:+.0f})"
        )
    return tuple(found)


def jsonable(value: Any) -> Any:
    """The value in JSON's types: dataclasses as objects, NaN as null, infinities as strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
