"""`dsv4-lab ncu`: Nsight Compute on one launch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click

from dsv4.runtime.device import open_device
from lab.cli import settings, text
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.debug.choose import one_case
from lab.page import one_spec
from lab.record.digests import stamp
from lab.recording import Recorder
from lab.run import RunOptions, run_case
from lab.tools.ncu import STALLS, Metric, find_ncu, profile, selecting

_STALLS_SHOWN = 4  # the largest; --json has all


@click.command()
@click.argument("kernel", type=KERNEL)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=7'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="The case's name.")
@click.option("--set", "set_name", default="", metavar="SET", help="A set of the tool: full, say.")
@click.option("--sections", default="", metavar="LIST", help="Sections of the tool.")
@click.option("--csv", "raw", is_flag=True, help="Print the tool's own CSV.")
@click.option("--keep", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Keep the tool's report here.")  # fmt: skip
@click.option("--open", "opened", is_flag=True, help="Open the kept report in ncu-ui.")
@click.option("--no-record", is_flag=True, help="Do not write to the store.")
def ncu(
    kernel: str,
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    set_name: str,
    sections: str,
    raw: bool,
    keep: Path | None,
    opened: bool,
    no_record: bool,
) -> None:
    """Profile one launch of one case and keep its headline metrics beside its timing.

    \b
    Example:
      dsv4-lab ncu rms_norm -c prefill
    """
    chosen = settings.current()
    if opened and keep is None:
        raise click.UsageError("--open needs --keep FILE, the report that is opened")
    find_ncu()
    spec = one_spec(kernel)
    case = one_case(spec, patterns, names)
    device = open_device("cuda", index=chosen.device)
    result = run_case(spec, case, device, RunOptions(seed=chosen.seed))
    arguments = selecting(spec.name, case, chosen.seed)
    wanted = [s.strip() for s in sections.split(",") if s.strip()]
    metrics, page = profile(spec.symbol, arguments, sections=wanted, set_name=set_name, keep=keep)
    recorder = Recorder(chosen.store, device, enabled=not no_record)
    document = {**result.to_json(), **stamp(spec.name), "build": result.build}
    document["ncu"] = {m.name: {"value": m.value, "unit": m.unit} for m in metrics}
    recorder.add_document(document)
    recorder.finish(0)
    if chosen.json:
        text.emit_json("ncu", env=recorder.env, run=recorder.run_id, result=document)
    elif raw:
        click.echo(page)
    else:
        text.say(f"{spec.name}  {case.label}  {device.name}\n{_table(metrics)}")
    if opened:
        _open(keep)


def _table(metrics: list[Metric]) -> str:
    stalls = sorted((m for m in metrics if m.name in STALLS), key=lambda m: -m.value)
    shown = [*(m for m in metrics if m.name not in STALLS), *stalls[:_STALLS_SHOWN]]
    rows = [(m.label, _value(m), m.name) for m in shown]
    return text.table(("metric", "value", "name in the tool"), rows)


def _value(metric: Metric) -> str:
    if metric.unit in ("s", "B", "Hz"):
        return text.scaled(metric.value, metric.unit)
    return f"{metric.value:.4g} {metric.unit}".strip()


def _open(report: Path | None) -> None:
    tool = shutil.which("ncu-ui")
    if tool is None:
        raise click.UsageError("ncu-ui is not on PATH; copy the report to a machine that has it")
    subprocess.Popen([tool, str(report)], start_new_session=True)
