"""`dsv4-lab probe`: the stages inside a kernel beside the oracle's."""

from __future__ import annotations

import click

from dsv4.runtime.device import open_device
from lab.cli import settings, text
from lab.cli.choices import one_case_options
from lab.cli.exit_codes import ExitCode
from lab.debug.choose import one_case
from lab.debug.probe import Probed, StageDiff
from lab.debug.probe import probe as run_probe
from lab.debug.stages import probe_lines, read_at, stages_of
from lab.debug.stand import Stand
from lab.page import one_spec


@click.command()
@one_case_options
@click.option("--at", metavar="PLACE", default="", help="Follow one output element: T=3,D=448.")
@click.option("--stages", metavar="LIST", default="", help="Look at these stages only.")
@click.option("--list", "listing", is_flag=True, help="List the stages and where they stand.")
@click.pass_context
def probe(
    ctx: click.Context,
    kernel: str,
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    backend: str,
    mode: str,
    at: str,
    stages: str,
    listing: bool,
) -> None:
    """Build a kernel with its probes and compare every stage inside it with the oracle.

    \b
    Example:
      dsv4-lab probe act_quant_fp8 -c verify --at T=5,K=300
    """
    chosen = settings.current()
    spec = one_spec(kernel)
    case = one_case(spec, patterns, names)
    device = open_device(backend, index=chosen.device, mode=mode, seed=chosen.seed)
    stand = Stand(spec, case, device, chosen.seed)
    if listing:
        _list(stand)
        return
    only = [s.strip() for s in stages.split(",") if s.strip()]
    found = run_probe(stand, at=read_at(at), only=only)
    if chosen.json:
        text.emit_json(
            "probe",
            kernel=spec.name,
            case=case.label,
            records=found.records,
            first=found.first.name if found.first else None,
            stages=[s.to_json() for s in found.stages],
        )
    text.say(f"{spec.name}  {case.label}  {device.name}  {found.records} values recorded\n")
    text.say(_table(found))
    text.say(_closing(found))
    ctx.exit(ExitCode.CONTRACT if found.first else ExitCode.OK)


def _list(stand: Stand) -> None:
    lines = probe_lines(stand.spec)
    rows = [
        (s.name, " ".join(s.axes), "yes" if s.exact else "", lines.get(s.name, "not in the source"))
        for s in stages_of(stand).values()
    ]
    if settings.current().json:
        keys = ("name", "axes", "exact", "place")
        text.emit_json("probe", stages=[dict(zip(keys, r, strict=True)) for r in rows])
        return
    text.say(text.table(("stage", "axes", "prescribed", "where"), rows))


def _table(found: Probed) -> str:
    header = ("stage", "n", "same", "at", "got", "oracle", "spacings", "")
    first = found.first
    rows = []
    for stage in found.stages:
        shown = stage.shown
        where = " ".join(f"{k}={v}" for k, v in shown.where.items()) if shown else ""
        got = "" if shown is None else "not reached" if shown.got is None else f"{shown.got:.9g}"
        want = "" if shown is None else f"{shown.want:.9g}"
        off = shown.off if shown else stage.off
        mark = f"<- first difference, {stage.place}" if stage is first else ""
        mark = mark or ("differs" if stage.differs else "")
        rows.append((stage.name, stage.n, stage.identical, where, got, want, off, mark))
    return text.table(header, rows)


def _closing(found: Probed) -> str:
    first = found.first
    if first is None:
        return "\nno stage is more than rounding away from the oracle"
    return f"\nfirst difference: stage {first.name} at {first.place}; {_how(first)}"


def _how(stage: StageDiff) -> str:
    parts = []
    if stage.differing:
        parts.append(f"{stage.differing} of {stage.n} elements differ")
    if stage.unvisited:
        parts.append(f"{stage.unvisited} were never reached")
    if stage.stray:
        parts.append(f"{stage.stray} records have an index outside the stage")
    if stage.twice:
        parts.append(f"{stage.twice} elements were recorded with different values by two threads")
    return ", ".join(parts)
