"""What a report says: results gathered from the store, cases looked at again, and their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dsv4 import registry
from dsv4.errors import Dsv4Error
from dsv4.runtime.device import Device
from lab.cases import cases
from lab.compare.judge import judge
from lab.compare.pair import pair
from lab.compare.ulp import BUCKETS
from lab.debug.forward import Bisection
from lab.debug.stand import Stand
from lab.record.store import Store
from lab.report import figures
from lab.report.page import Part
from lab.result import case_key

Row = Mapping[str, Any]
MOST_FOCUSED: Final = 3
_MOST_BARS = 24
_MOST_SERIES = 6
_LARGEST_FOCUS = 1 << 20  # elements of an output that is looked at again


@dataclass(frozen=True, slots=True)
class Gathered:
    """Results, oldest first, each with its `run`; and what the newest of them were made on."""

    rows: tuple[Row, ...]
    facts: tuple[str, ...]

    @property
    def latest(self) -> list[Row]:
        """The newest result of every kernel, case and place."""
        found = {(r["kernel"], label(r), place(r)): r for r in self.rows}
        return sorted(found.values(), key=lambda r: (r["kernel"], label(r)))


def gather(path: Path, *, since: str = "", kernels: Sequence[str] = ()) -> Gathered:
    """The results of a store. Errors: StoreError; a missing store gives none."""
    store = Store.open_existing(path)
    if store is None:
        return Gathered((), (f"no records in {path}",))
    with store:
        runs = [r for r in store.runs() if r["started"] >= since]
        rows = [
            {**row["json"], "run": run["id"]}
            for run in runs
            for row in store.results(run["id"])
            if not kernels or row["kernel"] in kernels
        ]
        facts = [f"{len(rows)} results of {len(runs)} records in {path}"]
        if runs:
            newest = store.run(runs[-1]["id"])
            commit = (newest["commit"] or "no commit")[:7] + ("+dirty" if newest["dirty"] else "")
            device = newest["env"].get("device")
            facts.append(f"newest record {newest['id']}, {newest['started']}, {device}, {commit}")
    return Gathered(tuple(rows), tuple(facts))


def label(row: Row) -> str:
    """Case and axes of a result."""
    return case_key(row["case"], row.get("axes") or {})


def place(row: Row) -> str:
    """Where a result was made."""
    if row.get("backend") == "cuda":
        return str(row.get("arch"))
    return f"{row.get('backend')} {row.get('mode') or ''}".strip()


def parts(
    gathered: Gathered, device: Device | None = None, forward: Bisection | None = None
) -> Iterable[Part]:
    """Every section of the report. device: where cases are looked at again; None for not at all."""
    latest = gathered.latest
    yield verdicts(latest)
    yield histogram(latest)
    if device is not None:
        for row in focus(latest):
            yield from looked_at(row, device)
    if forward is not None:
        yield pass_curve(forward)
    yield roofline(latest)
    yield history(gathered.rows)


def verdicts(latest: Sequence[Row]) -> Part:
    """The table of kernels: the worst verdict, how near the bound, how fast."""
    rows = []
    for kernel in dict.fromkeys(r["kernel"] for r in latest):
        mine = [r for r in latest if r["kernel"] == kernel]
        for where in dict.fromkeys(place(r) for r in mine):
            here = [r for r in mine if place(r) == where]
            outputs = [o for r in here for o in r.get("outputs") or []]
            worst = min((r["verdict"] for r in here), key=("ERROR", "FAIL", "PASS").index)
            n = sum(o["n"] for o in outputs)
            share = 100 * sum(o["identical"] for o in outputs) / n if n else None
            fastest = max((r.get("bandwidth_fraction") or 0 for r in here), default=0)
            rows.append((
                kernel, where, worst, len(here), sum(r["verdict"] != "PASS" for r in here),
                share, max((_number(o["bound_use"]) for o in outputs), default=None),
                "; ".join(dict.fromkeys(_short(o["contract"]) for o in outputs)),
                round(100 * fastest, 1) if fastest else None, max(r["run"] for r in here),
            ))  # fmt: skip
    rows.sort(key=lambda r: (("ERROR", "FAIL", "PASS").index(r[2]), r[0]))
    header = ("kernel", "where", "verdict", "cases", "not passed", "identical %", "bound use",
              "contract", "% of copy", "record")  # fmt: skip
    words = f"The newest result of every case: {len(latest)} cases of {len(rows)} kernels."
    return Part("Verdicts", words, header, tuple(rows))


def histogram(latest: Sequence[Row]) -> Part:
    """Shares of elements by distance from the oracle, the kernels that are furthest first."""
    totals: dict[str, dict[str, int]] = {}
    for row in latest:
        for output in row.get("outputs") or []:
            mine = totals.setdefault(row["kernel"], dict.fromkeys(BUCKETS, 0))
            for bucket, n in output["ulp_histogram"].items():
                mine[bucket] += n
    ordered = sorted(totals, key=lambda k: totals[k]["0"] / max(1, sum(totals[k].values())))
    shares = {
        k: {b: n / max(1, sum(totals[k].values())) for b, n in totals[k].items() if n}
        for k in ordered[:_MOST_BARS]
    }
    used = [b for b in BUCKETS if any(totals[k][b] for k in ordered)]
    rows = tuple((k, *(totals[k][b] or None for b in used)) for k in ordered)
    svg = figures.ulp_histogram(shares, BUCKETS) if shares else ""
    words = "Distance of every element from the rounded oracle, over all cases of a kernel"
    words += f"; the {_MOST_BARS} furthest kernels." if len(ordered) > _MOST_BARS else "."
    return Part("ULP histograms", words, ("kernel", *used), rows, svg, wide=True)


def focus(latest: Sequence[Row]) -> list[Row]:
    """The cases to look at again: what fails, then what is nearest its bound."""

    def rank(row: Row) -> tuple[bool, float]:
        uses = [_number(o["bound_use"]) for o in row.get("outputs") or []]
        return (row["verdict"] == "PASS", -max(uses, default=0.0))

    able = [r for r in latest if r.get("outputs") and _size(r) <= _LARGEST_FOCUS]
    chosen: dict[str, Row] = {}
    for row in sorted(able, key=rank):
        chosen.setdefault(row["kernel"], row)
    return list(chosen.values())[:MOST_FOCUSED]


def looked_at(row: Row, device: Device) -> Iterable[Part]:
    """Error map and signed error of one case, launched again now."""
    name = f"{row['kernel']} {label(row)}"
    try:
        spec = registry.spec(row["kernel"])
        case = next(c for c in cases(spec.name) if case_key(c.name, c.axes) == label(row))
        stand = Stand(spec, case, device, int(row.get("seed") or 0))
        stand.launch()
    except (Dsv4Error, StopIteration) as error:
        why = str(error).splitlines()[0] if str(error) else "its case is no longer there"
        yield Part(f"{name}: not looked at again", why, (), ())
        return
    output = next((a for a in spec.outputs if not stand.compared(a.name).passed), spec.outputs[0])
    both = pair(
        stand.bits[output.name], np.asarray(stand.expected[output.name].value),
        output.fmt.name, output.axes,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        judged = judge(spec.contract[output.name], both, stand.expected[output.name].magnitude,
                       stand.shape)  # fmt: skip
        use = np.where(np.isnan(judged.use), np.inf, judged.use)
        signed = both.error / both.step
    rows, columns = _flat_shape(use.shape)
    tile = _tile(spec.writes.get(output.name), both.axes)
    names = ("*".join(both.axes[:-1]) or "row", both.axes[-1] if both.axes else "element")
    slug = f"map-{spec.name}".replace("_", "-")
    svg, cells = figures.error_map(use.reshape(rows, columns), tile, names, slug)
    verdict = "PASS" if judged.passed else "FAIL"
    where = f"Output {output.name}, {both.fmt}, on {device.name}: {verdict}. {judged.reason}."
    yield Part(f"{name}: error map", where,
               (names[0], names[1], "outside", "worst use"), tuple(cells[:40]),
               svg)  # fmt: skip
    svg = figures.signed_ulp(np.abs(both.ref).reshape(-1), signed.reshape(-1), f"s{slug}")
    header = ("octave", "elements", "mean", "lowest", "highest")
    words = "Rounding is a band around zero; a slope or a shift is a bug. All of the largest errors"
    words += " are drawn, and a part of the others."
    yield Part(f"{name}: signed error by magnitude", words, header,
               tuple(_octaves(np.abs(both.ref), signed)), svg)  # fmt: skip


def pass_curve(found: Bisection) -> Part:
    """Inherited and added error along the forward pass."""
    rows = tuple((t.number, t.name, t.inherited, t.added, t.use) for t in found.taps)
    first = found.first.number if found.first else None
    svg = figures.forward_curve([t.inherited for t in found.taps], [t.added for t in found.taps],
                                first)  # fmt: skip
    words = (
        f"Every launch at its worst over {found.samples} samples; what adds nothing stands at the"
    )
    words += " foot, what inherits nothing is left out. " + (
        f"First broken: {found.first.name}." if found.first else "No tap leaves its contract."
    )
    header = ("#", "launch", "inherited", "added", "bound use")
    return Part("Forward pass", words, header, rows, svg, wide=True)


def roofline(latest: Sequence[Row]) -> Part:
    """Speed against arithmetic intensity."""
    timed = [
        {"flops": 0, "family": "others", **r} for r in latest if r.get("time_s") and r.get("bytes")
    ]
    points = [(r["flops"] / r["bytes"], r["bytes"] / r["time_s"], r["family"]) for r in timed]
    roofs = [r["bytes"] / r["time_s"] / r["bandwidth_fraction"]
             for r in timed if r.get("bandwidth_fraction")]  # fmt: skip
    rows = tuple(
        (r["kernel"], label(r), place(r), r["bytes"], r["flops"], 1e6 * r["time_s"],
         r["bytes"] / r["time_s"] / 1e9, _percent(r.get("bandwidth_fraction")))
        for r in timed
    )  # fmt: skip
    svg = figures.roofline(points, float(np.median(roofs)) if roofs else None) if points else ""
    header = ("kernel", "case", "where", "bytes", "flops", "time us", "GB/s", "% of copy")
    words = "Counted bytes over time; the dashed line is a plain copy on the same machine."
    return Part("Roofline", words, header, rows, svg)


def history(rows: Sequence[Row]) -> Part:
    """Times over the records, of the cases that were timed most often."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        if row.get("time_s"):
            name = f"{row['kernel']} {label(row)} {place(row)}"
            series.setdefault(name, []).append(
                (int(row["run"]), float(row["time_s"]), float(row.get("time_noise") or 0.0))
            )
    repeated = {k: v for k, v in series.items() if len(v) > 1}
    shown = dict(sorted(repeated.items(), key=lambda kv: -len(kv[1]))[:_MOST_SERIES])
    table = tuple(
        (name, run, 1e6 * time_s, 100 * noise, time_s / values[0][1])
        for name, values in shown.items()
        for run, time_s, noise in values
    )
    svg = figures.time_history(shown) if shown else ""
    words = "Cases timed in more than one record; bars are half the distance of the quartiles."
    return Part("Time history", words, ("case", "record", "us", "noise %", "of first"), table, svg)


def _octaves(magnitude: np.ndarray, signed: np.ndarray) -> Iterable[tuple[Any, ...]]:
    size, error = magnitude.reshape(-1), signed.reshape(-1)
    known = (size > 0) & np.isfinite(error)
    octave = np.frexp(size[known])[1]
    for exponent in np.unique(octave)[::-1][:40]:
        mine = error[known][octave == exponent]
        yield (f"2^{exponent - 1}", int(mine.size), float(mine.mean()), float(mine.min()),
               float(mine.max()))  # fmt: skip


def _flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    columns = shape[-1] if shape else 1
    return max(1, int(np.prod(shape, dtype=np.int64)) // max(1, columns)), max(1, columns)


def _tile(tile: Any, axes: tuple[str, ...]) -> tuple[int, int]:
    """Rows and columns of the last two axes that one block owns; 0 where it owns all."""
    widths = {p[0]: p[1] for p in (tile.x, tile.y, tile.z) if p} if tile else {}
    row_axes = axes[:-1]
    rows = widths.get(row_axes[-1], 0) if row_axes else 0
    return rows, widths.get(axes[-1], 0) if axes else 0


def _size(row: Row) -> int:
    return max((int(o["n"]) for o in row.get("outputs") or []), default=0)


def _short(contract: str) -> str:
    """A contract in a word or two; long formulas are in `dsv4-lab show`."""
    return contract if len(contract) <= 32 else f"{contract.partition('(')[0]}(...)"


def _percent(share: float | None) -> float | None:
    return round(100 * share, 1) if share else None


def _number(value: Any) -> float:
    return float("inf") if value == "inf" else float(value or 0.0)
