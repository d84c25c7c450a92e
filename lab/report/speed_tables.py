"""The tables of `docs/speed.md`, and the points of its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.bench.targets import Reached, flash_config, reached
from lab.report.markdown import card, markdown
from lab.report.roofline import Point

Document = Mapping[str, Any]
Result = Mapping[str, Any]

_DRAWN_BYTES: Final = 100_000


def cards(documents: Sequence[Document]) -> str:
    """A row for each part and card: what the runs measured of its roofs, and its clocks."""
    runs: dict[tuple[str, str], list[Document]] = {}
    for d in documents:
        runs.setdefault((d["part"], card(d["env"])), []).append(d)
    rows = []
    for names, alike in runs.items():
        roofs = [d["roofs"] for d in alike]
        clocks = [
            r["clock"][k]
            for d in alike
            for r in d["results"]
            for k in ("before_mhz", "after_mhz")
            if (r.get("clock") or {}).get(k)
        ]
        rows.append(
            (
                *names,
                str(len(alike)),
                _between([f"{r['read_bytes_per_s'] / 1e12:.2f}" for r in roofs], "TB/s"),
                _between([f"{r['copy_bytes_per_s'] / 1e12:.2f}" for r in roofs], "TB/s"),
                _between([f"{1e6 * r['launch_s']:.2f}" for r in roofs], "us"),
                f"{min(clocks):g} to {max(clocks):g} MHz" if clocks else "-",
            )
        )
    header = ("run", "card", "runs", "read roof", "copy roof", "shortest launch", "SM clock")
    return markdown(header, rows)


def _between(values: Sequence[str], unit: str) -> str:
    """The least and the most of figures of the same form, or the one that they are."""
    least, most = min(values, key=float), max(values, key=float)
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def told(found: Sequence[tuple[Document, Result]], roof: float) -> list[Reached]:
    """Every target. found: documents with their results; roof: bytes a second."""
    passed = [r for _, r in found if r["verdict"] == "PASS"]
    return reached(passed, flash_config(), roof)


def missed(them: Sequence[Reached]) -> list[Reached]:
    """The targets that were measured and not met, without those that are hoped for only."""
    return [r for r in them if r.met is False and not r.target.stretch]


def targets(them: Sequence[Reached], roof: float) -> str:
    """A row for each target. roof: bytes a second."""
    rows = [_target(r, roof) for r in them]
    header = ("what", "target", "floor is", "floor", "floor at the read roof", "measured",
              "floor of measured", "met")  # fmt: skip
    return markdown(header, rows)


def _target(r: Reached, roof: float) -> tuple[str, ...]:
    return (
        r.target.what,
        r.target.words(),
        r.target.formula if r.floor_bytes else "-",
        f"{r.floor_bytes / 1e6:.2f} MB" if r.floor_bytes else "-",
        _us(r.floor_bytes / roof) if r.floor_bytes else "-",
        figure(r),
        f"{100 * r.fraction:.0f} %" if r.fraction else "-",
        {True: "yes", False: "no", None: "not measured"}[r.met],
    )


def figure(r: Reached) -> str:
    """What was measured for a target; "-" for nothing."""
    if r.value is None:
        return "-"
    return f"{r.value:.4g}" if r.target.most is not None else _us(r.value)


def engine(results: Sequence[Result], first: Document) -> str:
    """A row for each layer, step and round that passed; "" without any."""
    roof = first["roofs"]["read_bytes_per_s"]
    rows = []
    for r in results:
        if r["kernel"] not in ("layer", "step", "round") or r["verdict"] != "PASS":
            continue
        time_s, floor = r["time_s"], r.get("floor_bytes")
        reading = r["cards"] if r.get("joins") else 1
        rate = r.get("tokens_per_s") or (r["rows"] / time_s if r["kernel"] == "step" else None)
        rows.append(
            (
                f"{r['kernel']}: {r['case']}" + _arm(r) + _cards(r),
                f"{r['launches']:.4g}" if r.get("launches") else "-",
                f"{floor / 1e6:.1f} MB" if floor else "-",
                _us(floor / roof / reading) if floor else "-",
                _us(time_s),
                _spread(r),
                f"{100 * floor / roof / reading / time_s:.0f} %" if floor else "-",
                f"{rate:.1f}" if rate else "-",
            )
        )
    header = ("what", "launches", "floor", "floor at the read roof", "measured", "+-",
              "floor of measured", "tokens/s")  # fmt: skip
    return markdown(header, rows) if rows else ""


def kernels(results: Sequence[Result]) -> str:
    """A row for each of our kernels' cases that passed; "" without any."""
    rows = [
        (
            f"`{r['kernel']}`" + _arm(r),
            f"{r['case']} {_axes(r)}".rstrip(),
            f"{r['bytes'] / 1e6:.3f}",
            _us(r["time_s"]),
            _spread(r),
            f"{r['bytes'] / r['time_s'] / 1e9:.0f}",
            f"{100 * r['read_fraction']:.0f} %" if r.get("read_fraction") else "-",
            ("cold" if r.get("time_cold") else "warm")
            + (", early" if r.get("starts_early") else ""),
            r.get("doubt") or "",
        )
        for r in results
        if r["family"] not in ("bench", "rival") and r["verdict"] == "PASS" and r.get("time_s")
    ]
    header = ("kernel", "case", "MB", "time", "+-", "GB/s", "of the read roof", "from", "doubt")
    return markdown(header, rows) if rows else ""


def rivals(documents: Sequence[Document]) -> str:
    """A row for each rival on each case; "" without any."""
    rows = []
    for d in documents:
        told = {
            (r["rival"], r["case"], json.dumps(r.get("axes") or {}, sort_keys=True)): r
            for r in d["results"]
            if r["family"] == "rival"
        }
        for r in told.values():
            pair = next((p for p in d["pairs"] if _is_of(p, r)), None)
            measured = r["verdict"] == "PASS" and pair is not None and pair["time"]
            ours, theirs = (pair["time_s"][1], pair["time_s"][0]) if measured and pair else (0, 0)
            why = r["reasons"][0] if r.get("reasons") else ""
            rows.append(
                (
                    f"{r['case']} {_axes(r)}",
                    f"{r['rival']} ({r.get('note', '')})",
                    _us(theirs) if measured else "-",
                    _us(ours) if measured else "-",
                    f"{theirs / ours:.2f}" if measured else "-",
                    str(pair["time"]) if measured and pair else _cell(why) or r["verdict"],
                )
            )
    header = ("work", "rival", "rival's time", "our time", "rival over ours", "ours is")
    return markdown(header, rows) if rows else ""


def _is_of(pair: Mapping[str, Any], result: Result) -> bool:
    kernel, _, case = str(result["case"]).partition(" ")
    return bool(
        pair.get("rival") == result["rival"]
        and pair["name"] == f"{kernel} {case} {_axes(result)}".rstrip()
    )


def arms(documents: Sequence[Document]) -> str:
    """A row for each pair of arms; "" without any."""
    rows = [
        (
            p["name"],
            _words(p["a"]) or "-",
            _words(p["b"]) or "-",
            _us(p["time_s"][0]),
            _us(p["time_s"][1]),
            f"{p['ratio']:.3f}",
            p["time"],
        )
        for d in documents
        for p in d["pairs"]
        if not p.get("rival") and p["time"]
    ]
    return markdown(("what", "A", "B", "A", "B", "B/A", "B is"), rows) if rows else ""


def points(results: Sequence[Result]) -> list[Point]:
    """Our kernels under no arm from 100 kB on: below that a launch costs what a launch costs.

    The largest case of each family is named in the picture where there is room.
    """
    ours = [
        r
        for r in results
        if r["family"] not in ("bench", "rival")
        and r["verdict"] == "PASS"
        and r.get("time_s")
        and r["bytes"] >= _DRAWN_BYTES
        and not r.get("arm")
    ]
    largest = {r["family"]: r for r in sorted(ours, key=lambda r: r["bytes"])}
    return [
        Point(
            label=f"{r['kernel']} {r['case']} {_axes(r)}: {_us(r['time_s'])}",
            size_bytes=r["bytes"],
            time_s=r["time_s"],
            cold=bool(r.get("time_cold")),
            short=r["kernel"] if largest[r["family"]] is r else "",
        )
        for r in ours
    ]


def _us(time_s: float) -> str:
    return f"{1e3 * time_s:.3f} ms" if time_s >= 1e-3 else f"{1e6 * time_s:.2f} us"


def _spread(result: Result) -> str:
    return f"{100 * (result.get('time_noise') or 0.0):.1f} %"


def _axes(result: Result) -> str:
    return " ".join(f"{k}={v}" for k, v in (result.get("axes") or {}).items())


def _words(arm: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in arm.items())


def _arm(result: Result) -> str:
    said = _words(result.get("arm") or {})
    return f" ({said})" if said else ""


def _cards(result: Result) -> str:
    cards, joins = result.get("cards", 1), result.get("joins")
    said = f", {cards} cards" if cards > 1 else ""
    return said + (f", {joins} joins of {_us(result['join_s'])}" if joins else "")


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
