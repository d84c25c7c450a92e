"""A kernel's named stages beside its oracle's stages of the same name: where it first goes wrong.

The kernel is built with LAB_PROBE, launched once, and every PROBE's records are joined with the
oracle's stage by flat index. A stage that the model prescribes to the bit must be equal; another
one is rounding as long as it is within NOISE spacings of float32 of its own size or of the stage's
typical size. That limit points, it never judges: contracts are for outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dsv4.errors import SpecError
from dsv4.runtime.probed import ProbedDevice
from dsv4.runtime.probes import stage_number
from lab.debug.stages import Stage, check_at, followed, probe_lines, stages_of
from lab.debug.stand import Stand
from oracle.formats import round_to, spacing

NOISE: Final = 256.0
_SPARE_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a stage. where: index along each axis expression; got None: not visited."""

    index: int
    where: Mapping[str, int]
    got: float | None
    want: float
    off: float


@dataclass(frozen=True, slots=True)
class StageDiff:
    """A stage on both sides.

    n: elements the oracle has. identical: the same float32 number. off: the largest distance in
    float32 spacings. unvisited: elements that the kernel did not reach. stray: records outside the
    stage. twice: elements recorded with different values by different threads. shown: the element
    asked for, or the first different one.
    """

    name: str
    place: str
    axes: tuple[str, ...]
    exact: bool
    n: int
    identical: int
    off: float
    differing: int
    unvisited: int
    stray: int
    twice: int
    shown: Element | None

    @property
    def differs(self) -> bool:
        """Whether this stage is more than rounding away from the oracle's."""
        return bool(self.differing or self.unvisited or self.stray or self.twice)

    def to_json(self) -> dict[str, Any]:
        """One element of probe's `stages`."""
        shown = self.shown
        names = ("name", "place", "exact", "n", "identical", "off", "differing", "unvisited",
                 "stray", "twice")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "axes": list(self.axes),
            "differs": self.differs,
            "element": None
            if shown is None
            else {"index": shown.index, "where": dict(shown.where), "got": shown.got,
                  "oracle": shown.want, "off": shown.off},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probed:
    """Every stage in the order of the oracle, outputs last; and how many values were recorded."""

    stages: tuple[StageDiff, ...]
    records: int

    @property
    def first(self) -> StageDiff | None:
        """The first stage that differs."""
        return next((s for s in self.stages if s.differs), None)


def probe(stand: Stand, *, at: Mapping[str, int] | None = None, only: Sequence[str] = ()) -> Probed:
    """Launch the probed build of a case and compare stage by stage.

    at: axis and index of the output element to follow back. only: names of stages to look at.
    Errors: SpecError when kernel and oracle have no stage in common, or at is outside the case.
    """
    stages = stages_of(stand)
    lines = probe_lines(stand.spec)
    check_at(stand, at or {})
    if unknown := [name for name in only if name not in stages and name not in stand.expected]:
        known = ", ".join([*stages, *stand.expected])
        raise SpecError(f"{stand.spec.name}: no stage {', '.join(unknown)}; there are {known}")
    if not set(stages) & set(lines):
        raise SpecError(
            f"{stand.spec.name}: kernel and oracle have no stage in common\n"
            f"  the source has {', '.join(lines) or 'no PROBE'}, the oracle has"
            f" {', '.join(stages) or 'no stage'}\n"
            f"  add PROBE(name, index, value) to cuda/{stand.spec.family}.cu and a call of probe"
            f" with that name to oracle/{stand.spec.family}.py"
        )
    records, met = _record(stand, sum(s.values.size for s in stages.values()))
    found = [
        _compared(s, records, stand.shape, lines[s.name], at or {})
        for s in stages.values()
        if s.name in lines
    ]
    found += [_output(stand, name, at or {}) for name in stand.expected if name in stand.bits]
    return Probed(tuple(s for s in found if not only or s.name in only), met)


def _record(stand: Stand, elements: int) -> tuple[np.ndarray, int]:
    """All records of one launch; a second launch with room for all when the first had too little.

    The outputs of the probed build become the stand's bits.
    """
    device = ProbedDevice(stand.device, 2 * elements + _SPARE_RECORDS)
    launch = stand.prepared(device)
    for _ in range(2):
        stand.fill()
        launch.run()
        stand.bits = {a.name: stand.arrays[a.name].bits() for a in stand.spec.outputs}
        if device.met <= device.capacity:
            break
        device.capacity = device.met
    return device.records, device.met


def _compared(
    stage: Stage,
    records: np.ndarray,
    shape: Mapping[str, Any],
    place: str,
    at: Mapping[str, int],
) -> StageDiff:
    mine = records[records["stage"] == stage_number(stage.name)]
    inside = (mine["index"] >= 0) & (mine["index"] < stage.values.size)
    index, value = mine["index"][inside], mine["value"][inside]
    got = np.full(stage.values.size, np.nan)
    seen = np.zeros(stage.values.size, bool)
    got[index], seen[index] = value, True
    twice = np.unique(index[~_equal(got[index], value)]).size
    want = stage.values.reshape(-1)
    unvisited = int((~seen & ~np.isnan(want)).sum())
    diff = _diff(stage, place, got, want, seen, shape, at)
    return replace(diff, unvisited=unvisited, stray=int((~inside).sum()), twice=twice)


def _diff(
    stage: Stage,
    place: str,
    got: np.ndarray,
    want: np.ndarray,
    seen: np.ndarray,
    shape: Mapping[str, Any],
    at: Mapping[str, int],
) -> StageDiff:
    with np.errstate(all="ignore"):
        rounded = round_to(want, "f32")
        same = seen & (_equal(got, want) | _equal(got, rounded))
        off = np.where(same | ~seen, 0.0, np.abs(got - want) / _unit(want))
    off = np.where(np.isnan(off) & ~same, np.inf, off)
    limit = 0.0 if stage.exact else NOISE
    wrong = seen & (off > limit)
    chosen = followed(stage, shape, at)
    if chosen is None:
        missed = ~seen & ~np.isnan(want)
        first = np.flatnonzero(wrong | missed)
        chosen = int(first[0]) if first.size else None
    shown = None
    if chosen is not None:
        where = np.unravel_index(chosen, stage.values.shape)
        shown = Element(
            chosen,
            dict(zip(stage.axes, map(int, where), strict=True)),
            float(got[chosen]) if seen[chosen] else None,
            float(want[chosen]),
            float(off[chosen]),
        )
    return StageDiff(
        name=stage.name,
        place=place,
        axes=stage.axes,
        exact=stage.exact,
        n=int((~np.isnan(want) | seen).sum()),
        identical=int(same.sum()),
        off=float(off.max(initial=0.0)),
        differing=int(wrong.sum()),
        unvisited=0,
        stray=0,
        twice=0,
        shown=shown,
    )


def _output(stand: Stand, name: str, at: Mapping[str, int]) -> StageDiff:
    """An output as the last stage: what differs there is what its contract does not allow."""
    arg = stand.spec.arg(name)
    judged = stand.compared(name)
    values, want = stand.values(name), stand.rounded(name)
    if want.size != values.size:  # several elements a byte: the comparison alone knows them
        want = values
    values, want = values.astype(np.float64), want.astype(np.float64)
    stage = Stage(name, arg.axes, want.reshape(values.shape), exact=False)
    seen = np.ones(values.size, bool)
    diff = _diff(stage, "output", values.reshape(-1), want.reshape(-1), seen, stand.shape, at)
    shown = diff.shown if at else None
    if shown is None and judged.first is not None and not judged.passed:
        first = judged.first
        off = abs(first.got - first.ref64) / float(_unit(np.array([first.ref64]))[0])
        shown = Element(first.index, first.where, first.got, first.ref, off)
    return replace(
        diff, identical=judged.identical, differing=judged.failing, exact=False, shown=shown
    )


def _unit(want: np.ndarray) -> np.ndarray:
    """A float32 spacing of each element, or of the stage's typical size where that is larger."""
    size = np.abs(np.where(np.isfinite(want), want, 0.0))
    typical = float(np.median(size)) if size.size else 0.0
    return np.asarray(spacing(np.maximum(size, typical), "f32"))


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
