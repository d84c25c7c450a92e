"""`dsv4-lab list`: which kernels there are, what they promise, and how they last did."""

from __future__ import annotations

from typing import Any

import click

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.spec import KernelSpec
from lab.cases import cases
from lab.cli import text
from lab.cli.settings import Settings
from lab.cli.types import KERNEL
from lab.compare.judge import label
from lab.coverage import gaps, undeclared_symbols
from lab.record.digests import source_digest
from lab.record.store import Store


@click.command("list")
@click.argument("kernels", metavar="[PATTERN]...", nargs=-1, type=KERNEL)
@click.option("--family", metavar="NAME", help="Only kernels of this family.")
@click.option("--coverage", is_flag=True, help="List what the cases do not cover.")
@click.option("--stale", is_flag=True, help="Only kernels edited since their last record.")
@click.pass_obj
def list_kernels(
    settings: Settings, kernels: tuple[str, ...], family: str | None, coverage: bool, stale: bool
) -> None:
    """List kernels with their contract, cases and last verdict.

    PATTERN is a name, a family, a glob or a prefix.

    \b
    Example:
      dsv4-lab list 'linear_*' --coverage
    """
    specs = registry.match(kernels)
    if family is not None:
        if family not in registry.families():
            raise SpecError(
                f"no family {family!r}; there are {', '.join(registry.families())}\n"
                "  see them with: dsv4-lab list"
            )
        specs = [s for s in specs if s.family == family]
    latest = _latest(settings)
    rows = [_describe(spec, latest.get(spec.name), coverage) for spec in specs]
    if stale:
        rows = [row for row in rows if row["stale"]]
    undeclared = undeclared_symbols() if coverage else []
    if settings.json:
        more = {"undeclared": [f"{f}: {s}" for f, s in undeclared]} if coverage else {}
        text.emit_json("list", kernels=rows, **more)
        return
    if coverage:
        _print_gaps(rows, undeclared)
        return
    header = ("kernel", "family", "contract", "cases", "last", "summary")
    text.say(
        text.table(
            header,
            [
                (
                    row["kernel"],
                    row["family"],
                    "; ".join(dict.fromkeys(map(_short, row["contract"].values()))),
                    row["cases"],
                    text.verdict(row["verdict"]) + ("*" if row["edited"] else ""),
                    row["summary"],
                )
                for row in rows
            ],
        )
    )
    edited = sum(row["edited"] for row in rows)
    tail = f"; * {edited} edited since" if edited else ""
    text.note(f"{len(rows)} kernels in {len({r['family'] for r in rows})} families{tail}")


def _latest(settings: Settings) -> dict[str, dict[str, Any]]:
    store = Store.open_existing(settings.store)
    if store is None:
        return {}
    with store:
        return store.latest()


def _describe(spec: KernelSpec, latest: dict[str, Any] | None, coverage: bool) -> dict[str, Any]:
    recorded = latest["source_digest"] if latest else None
    edited = bool(recorded) and recorded != source_digest(spec)
    return {
        "kernel": spec.name,
        "family": spec.family,
        "summary": spec.summary,
        "contract": {name: label(c) for name, c in spec.contract.items()},
        "cases": _count_cases(spec),
        "verdict": latest["verdict"] if latest else "NEW",
        "record": latest["run"] if latest else None,
        "edited": edited,
        "stale": edited or not recorded,
        **({"gaps": gaps(spec)} if coverage else {}),
    }


def _short(contract: str) -> str:
    """The contract without a formula that is too long for a column; `show` has it."""
    return contract if len(contract) <= 16 else contract.partition("(")[0]


def _count_cases(spec: KernelSpec) -> int | None:
    """How many cases; None while nobody has written any, so that the list still shows the rest."""
    try:
        return len(cases(spec.name))
    except SpecError:
        return None


def _print_gaps(rows: list[dict[str, Any]], undeclared: list[tuple[str, str]]) -> None:
    found = [(row["kernel"], gap) for row in rows for gap in row["gaps"]]
    found += [(symbol, f"in {file}, but nobody declares it") for file, symbol in undeclared]
    if found:
        text.say(text.table(("kernel", "gap"), found))
    text.note(f"{len(found)} gaps in {len(rows)} kernels")
