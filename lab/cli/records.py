"""`dsv4-lab records`: look into the store, move records between stores, delete old ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from dsv4.errors import StoreError
from lab.cli import text
from lab.cli.settings import current
from lab.record.exchange import export_jsonl, import_jsonl
from lab.record.store import Store

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?")


@click.group()
def records() -> None:
    """Look into the record store, move records between stores, delete old ones.

    \b
    Example:
      dsv4-lab records list
    """


@records.command("list")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N runs.")
def list_runs(last: int | None) -> None:
    """List the runs in the store.

    \b
    Example:
      dsv4-lab records list --last 5
    """
    path = current().store
    store = Store.open_existing(path)
    runs: list[dict[str, Any]] = []
    if store is not None:
        with store:
            runs = store.runs()
    runs = runs[-last:] if last else runs
    if current().json:
        text.emit_json("records list", store=str(path), runs=runs)
        return
    if not runs:
        text.note(f"no records in {path}; dsv4-lab kernel-diff makes some")
        return
    header = ("record", "started", "kernels", "cases", "pass", "fail", "error", "exit", "command")
    text.say(text.table(header, [_row(run) for run in runs]))


@records.command()
@click.argument("run", type=int)
@click.option("--kernel", metavar="NAME", help="Only results of this kernel.")
def show(run: int, kernel: str | None) -> None:
    """Show the environment and every result of a run.

    \b
    Example:
      dsv4-lab records show 12 --kernel rms_norm
    """
    with _existing() as store:
        facts = store.run(run)
        results = store.results(run, kernel=kernel)
    if current().json:
        elements = [r["json"] for r in results]
        text.emit_json("records show", run=facts, results=elements)
        return
    commit = (facts["commit"] or "no commit")[:7] + ("+dirty" if facts["dirty"] else "")
    text.say(f"record {run}  {facts['started']}  {commit}  {' '.join(facts['argv'][1:])}")
    header = ("kernel", "case", "axes", "place", "verdict", "identical", "bound use", "time")
    text.say(text.table(header, [_result_row(r) for r in results]))


@records.command()
@click.argument("runs", nargs=-1, type=int)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def export(runs: tuple[int, ...], output: Path | None) -> None:
    """Write runs, or all of them, as JSON lines.

    \b
    Example:
      dsv4-lab records export 12 -o h200.jsonl
    """
    with _existing() as store:
        lines = list(export_jsonl(store, runs or None))
    content = "".join(f"{line}\n" for line in lines)
    if output is not None:
        output.write_text(content, encoding="utf-8")
    if current().json:
        text.emit_json("records export", lines=len(lines), file=str(output) if output else None)
    elif output is None:
        click.echo(content, nl=False)
    else:
        text.note(f"{len(lines)} lines in {output}")


@records.command("import")
@click.argument("file", type=click.File(encoding="utf-8", errors="replace"))
def import_(file: Any) -> None:
    """Add the runs of an exported file; those that are here already are skipped.

    \b
    Example:
      dsv4-lab records import h200.jsonl
    """
    with Store.open(current().store) as store:
        runs, results = import_jsonl(store, file)
    if current().json:
        text.emit_json("records import", runs=runs, results=results)
    else:
        text.say(f"{runs} runs with {results} results imported into {store.path}")


@records.command()
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N runs.")
@click.option("--before", metavar="DATE", help="Delete only runs started before 2026-01-31, say.")
def prune(keep: int | None, before: str | None) -> None:
    """Delete old runs with their results. With both options a run goes when both say so.

    \b
    Example:
      dsv4-lab records prune --keep 50
    """
    if keep is None and before is None:
        raise click.UsageError("say which runs: --keep N, --before DATE, or both")
    if before is not None and not _DATE.fullmatch(before):
        raise click.UsageError(f"--before {before!r} is no date; write it like 2026-01-31")
    _existing().close()
    with Store.open(current().store) as store:
        deleted = store.prune(keep, before)
    if current().json:
        text.emit_json("records prune", deleted=deleted)
    else:
        text.say(f"{deleted} runs deleted from {store.path}")


def _existing() -> Store:
    path = current().store
    store = Store.open_existing(path)
    if store is None:
        raise StoreError(
            f"there are no records in {path}\n"
            "  run dsv4-lab kernel-diff first, or name another store with --store PATH"
        )
    return store


def _row(run: dict[str, Any]) -> tuple[Any, ...]:
    exit_code = "interrupted" if run["finished"] is None else str(run["exit_code"])
    command = " ".join(run["argv"][1:])
    counts = (run[k] for k in ("kernels", "results", "pass", "fail", "error"))
    return (run["id"], run["started"], *counts, exit_code, command)


def _result_row(r: dict[str, Any]) -> tuple[Any, ...]:
    place = r["arch"] if r["backend"] == "cuda" else f"{r['backend']} {r['mode'] or ''}".strip()
    share = f"{r['identical']}/{r['n']}" if r["n"] else "-"
    axes = " ".join(f"{k}={v}" for k, v in r["axes"].items())
    bound = None if r["bound_use"] is None else round(r["bound_use"], 3)
    time = text.scaled(r["time_s"], "s")
    return (r["kernel"], r["case"], axes, place, text.verdict(r["verdict"]), share, bound, time)
