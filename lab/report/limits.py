"""`docs/limits.md`: what limits each target of `docs/speed.md` that is missed, and what was tried.

Made from the committed documents of `bench`, from documents of `dsv4-lab ncu --json` of the very
cases that missed targets are about, and from the attempts that people wrote down. Where one of them
is missing there is no page.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from dsv4.errors import Refusal
from lab.bench.targets import TARGETS, Part, Reached
from lab.report import speed, speed_tables
from lab.report.attempts import Written, read_attempts
from lab.report.markdown import card, markdown
from lab.report.speed import DOCS
from lab.report.speed_tables import Document
from lab.tools.ncu import HEADLINES, STALLS

COMMITTED = DOCS / "measured" / "ncu"
"""Documents of counters that the committed page is made from, shortened; one for each part."""
ATTEMPTS = DOCS / "measured" / "attempts.toml"
PAGE: Final = "limits.md"
FEWEST: Final = 3
"""Attempts that a missed target has at least."""

_SHOWN: Final = ("time", "DRAM bytes", "DRAM of peak", "L2 hits", "issue slots used",
                 "warps active", "registers", "SM of peak")  # fmt: skip
_STALLS_SHOWN: Final = ("largest stall", "second stall", "third stall")
_SCALES: Final = {"s": (1e6, "us"), "B": (1e-6, "MB"), "%": (1.0, "%")}
_RESULT: Final = ("kernel", "case", "axes", "verdict", "source_digest", "ncu")


def command_of(part: Part) -> str:
    """What prints the document of a part's counters on a card."""
    axes = ",".join(f"{k}={v}" for k, v in part.axes.items())
    words = ["dsv4-lab", "ncu", part.kernel, "-c", part.case, *(["-p", axes] if axes else [])]
    return shlex.join([*words, "--json"])


def shortened(document: Document) -> dict[str, Any]:
    """The fields that the page reads. Errors: Refusal for what has no good launch on a card."""
    result, env = document.get("result") or {}, document.get("env") or {}
    if document.get("command") != "ncu" or not result.get("ncu") or not env.get("device"):
        raise Refusal(
            f"a document of {document.get('command')} was given\n"
            "  the page reads counters, and the card that they are of\n  in lab.report.limits\n"
            "  make one on a card with dsv4-lab ncu --json"
        )
    if result["verdict"] != "PASS":
        raise Refusal(
            f"counters of {result['kernel']} were given\n  its check says {result['verdict']}\n"
            "  in lab.report.limits\n  make them of a kernel that holds its contract"
        )
    return {
        "schema": document["schema"],
        "command": "ncu",
        "env": {k: env.get(k) for k in speed.ENV},
        "result": {k: result[k] for k in _RESULT if k in result},
    }


def by_part(documents: Sequence[Document]) -> dict[str, dict[str, Any]]:
    """The last document of each part, by its words. Errors: Refusal for one of no target."""
    parts = [p for t in TARGETS for p in t.profiled]
    found = {}
    for document in map(shortened, documents):
        result = document["result"]
        words = next((p.words for p in parts if p.is_it(result)), None)
        if words is None:
            raise Refusal(
                f"counters of {result['kernel']} {result['case']} {result['axes']} were given\n"
                "  no target is about it\n  in lab/bench/targets.py\n  leave it out"
            )
        found[words] = document
    return found


def page(bench: Sequence[Document], counters: Sequence[Document], written: Written) -> str:
    """The text. bench: documents of one card; counters: of the same.

    Errors: Refusal naming all counters and attempts that are missing, and how they are made.
    """
    kept, found = speed.gathered(bench)
    told = by_part(counters)
    missed = speed_tables.missed(speed_tables.told(found, kept[0]["roofs"]["read_bytes_per_s"]))
    if lacking := _lacking(missed, told, written):
        raise Refusal(
            "\n  ".join(["a page of missed targets was asked for", *lacking])
            + "\n  in lab.report.limits\n  print counters on a card and give the documents, write"
            f" attempts into docs/measured/{ATTEMPTS.name}"
        )
    parts = {p.words: p for r in missed for p in r.target.profiled}
    cards = {str(d["env"]["device"]) for d in (kept[0], *(told[p] for p in parts))}
    if len(cards) != 1:
        raise Refusal(
            f"times and counters of {', '.join(sorted(cards))} were given\n"
            "  the page tells one card\n  in lab.report.limits\n  make them anew on one"
        )
    counted: dict[str, list[str]] = {}
    for p in parts.values():
        counted.setdefault(card(told[p.words]["env"]), []).append(f"`{p.kernel}` {_case(p)}")
    rows = [(name, ", ".join(cases)) for name, cases in counted.items()]
    sections = [
        "# What limits the targets that are missed",
        "Generated by `python -m lab.report.limits` from documents of `dsv4-lab bench --json` and"
        f" of `dsv4-lab ncu --json`, and from `measured/{ATTEMPTS.name}`; do not edit."
        " [Targets](speed.md#targets) that are met or only hoped for are not here. Counters are of"
        " one launch alone, with caches emptied in front of it: it takes longer than the measured"
        " time, which is of many launches in a graph. A stall is how many warps of a scheduler wait"
        " on average, for each instruction that it issues.",
        *([written.note] if written.note else []),
        speed_tables.cards(kept),
        *([markdown(("card", "counters of"), rows)] if rows else []),
        *([] if missed else ["No target is missed."]),
        *(piece for r in missed for piece in _section(r, told, written)),
    ]
    return "\n\n".join(sections) + "\n"


def _lacking(missed: Sequence[Reached], told: Mapping[str, Any], written: Written) -> list[str]:
    """What the page would need, with the way to it, a line for each thing."""
    lines = []
    for target in (r.target for r in missed):
        lines += [
            f"{target.what}: no counters of {p.words}: {command_of(p)}"
            for p in target.profiled
            if p.words not in told
        ]
        if (count := len(written.about(target))) < FEWEST:
            lines.append(f"{target.what}: {count} of at least {FEWEST} attempts")
        if not written.limits.get(target.what):
            lines.append(f"{target.what}: no sentence under limits that says what limits it")
    return lines


def _section(r: Reached, told: Mapping[str, Document], written: Written) -> list[str]:
    share = f", {100 * r.fraction:.0f} % of the roof" if r.fraction else ""
    parts = r.target.profiled
    columns = [_column(told[p.words]["result"]["ncu"]) for p in parts]
    header = ("counter", *(f"`{p.kernel}` {_case(p)}" for p in parts))
    rows = list(zip((*_SHOWN, *_STALLS_SHOWN), *columns, strict=True))
    return [
        f"## {r.target.what}",
        f"Target: {r.target.words()}. Measured: {speed_tables.figure(r)}{share}.",
        *([markdown(header, rows)] if parts else []),
        written.limits[r.target.what],
        "Tried, the best first:",
        "\n".join(f"{i}. {a.words()}" for i, a in enumerate(written.about(r.target), 1)),
    ]


def _column(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A cell for each line of the table; "-" for what the tool did not count."""
    labelled = {HEADLINES[k]: _value(m) for k, m in metrics.items() if k in HEADLINES}
    stalls = sorted(((m["value"], STALLS[k]) for k, m in metrics.items() if k in STALLS))[::-1]
    largest = [f"{value:.2f} {label}" for value, label in stalls[: len(_STALLS_SHOWN)]]
    cells = [labelled.get(label, "-") for label in _SHOWN]
    return cells + largest + ["-"] * (len(_STALLS_SHOWN) - len(largest))


def _value(metric: Mapping[str, Any]) -> str:
    factor, unit = _SCALES.get(metric["unit"], (1.0, ""))
    return f"{factor * metric['value']:.4g} {unit}".rstrip()


def _case(part: Part) -> str:
    return part.words.removeprefix(f"{part.kernel} ")


@click.command()
@click.argument("records", nargs=-1, metavar="[RECORD.json]...",
                type=click.Path(path_type=Path, exists=True, dir_okay=False))  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=DOCS,
              metavar="DIR", help="Where limits.md goes.  [default: docs]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the documents, shortened, in DIR/measured/ncu.")
def main(records: tuple[Path, ...], out: Path, keep: bool) -> None:
    """Write the page of limits. Counters that are given take the place of committed ones.

    Example: python -m lab.report.limits wq_b.json gate_up.json --keep
    """
    try:
        given = by_part(speed.read_documents(records))
        told = by_part(speed.read_documents([*COMMITTED.glob("*.json")])) | given
        bench = speed.read_documents([*speed.COMMITTED.glob("*.json")])
        text = page(bench, list(told.values()), read_attempts(ATTEMPTS))
    except Refusal as error:
        raise click.ClickException(str(error)) from None
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(text, encoding="utf-8")
    click.echo(f"{out / PAGE} written")
    if keep:
        folder = out / COMMITTED.relative_to(DOCS)
        folder.mkdir(parents=True, exist_ok=True)
        for words, document in given.items():
            path = folder / f"{re.sub('[^A-Za-z0-9_]+', '-', words)}.json"
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            click.echo(f"{path} written")


if __name__ == "__main__":
    main()
