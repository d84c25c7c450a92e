"""`dsv4-lab sanitize`: memory and race checking of kernels."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import NoReturn

import click

from dsv4 import registry
from dsv4.runtime.device import cuda_problem, open_device
from lab import session
from lab.cli import exit_codes, settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import KERNEL
from lab.run import RunOptions
from lab.tools.sanitizer import TOOLS, Finding, Report, of_check_mode
from lab.tools.sanitizer import sanitize as run_tool


@click.command()
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("--tool", "tools", default="memcheck,racecheck", show_default=True,
              help=f"Comma-separated: {', '.join(TOOLS)}.")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="compute-sanitizer on cuda, the check mode on host.")  # fmt: skip
@click.option("--padding", type=click.IntRange(0), default=256, show_default=True, metavar="BYTES",
              help="Room that memcheck keeps after each allocation.")  # fmt: skip
@click.option("--level", type=click.Choice(["quick", "full"]), default="quick",
              help="Which cases to run.")  # fmt: skip
def sanitize(kernels: tuple[str, ...], tools: str, backend: str, padding: int, level: str) -> None:
    """Run kernels under compute-sanitizer, or in check mode on a machine without a GPU.

    A case that fails its contract meanwhile is told too: a tool sees accesses, not numbers.

    Example: dsv4-lab sanitize rms_norm --tool racecheck
    """
    names = [s.name for s in registry.match(kernels)]
    if backend == "auto":
        backend = "host" if cuda_problem() else "cuda"
    if backend == "host":
        _end([_check_mode(names, level)], "host")
    chosen = [t.strip() for t in tools.split(",") if t.strip()]
    if unknown := [t for t in chosen if t not in TOOLS]:
        raise click.UsageError(f"no tool {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    arguments = ["--level", level]
    _end([run_tool(t, names, arguments=arguments, padding=padding) for t in chosen], "cuda")


def _check_mode(names: list[str], level: str) -> Report:
    """The host backend's check mode over the same kernels."""
    device = open_device("host", mode="check")
    work = session.plan([registry.spec(n) for n in names], level=level, mode="check")
    return of_check_mode(list(session.run(work, device, RunOptions(time=False, relaunch=1))))


def _end(reports: list[Report], backend: str) -> NoReturn:
    """Print what the tools found and what failed meanwhile, and leave with the worst of it."""
    header = ("tool", "cases", "findings", "not passed", "state")
    rows = [(r.tool, r.cases, len(r.findings), len(r.broken), _state(r)) for r in reports]
    text.say(text.table(header, rows))
    for report in reports:
        if not report.complete:
            text.note(
                f"{report.tool} did not close with its summary, so what it did not see may be"
                f" wrong too:\n{report.log[-800:].rstrip()}\n"
                "  run the same kernels without it, then one case at a time under it"
            )
    found = [f for r in reports for f in r.findings]
    broken = [b for r in reports for b in r.broken]
    for line in _places(found):
        text.say(f"  {line}")
    for case in broken:
        text.say(
            f"  {case.tool}  {case.kernel}  {case.case}  {text.verdict(case.verdict)}"
            f"\n    {case.what}\n    see it with: dsv4-lab kernel-diff {case.kernel}"
        )
    codes = [ExitCode.SANITIZER for _ in found]
    codes += [ExitCode.SANITIZER for r in reports if not r.complete]
    codes += [
        exit_codes.code_for_name(b.error_class) if b.error_class else ExitCode.CONTRACT
        for b in broken
    ]
    if settings.current().json:
        text.emit_json(
            "sanitize",
            backend=backend,
            tools=[dict(zip(("tool", "cases", "findings", "broken", "state"), row, strict=True))
                   for row in rows],
            findings=[asdict(f) for f in found],
            broken=[asdict(b) for b in broken],
            exit_codes=sorted(set(map(int, codes))),
        )  # fmt: skip
    sys.exit(exit_codes.worst(codes))


def _state(report: Report) -> str:
    if report.findings:
        return "FINDINGS"
    if not report.complete:
        return "INCOMPLETE"
    return "NOT PASSED" if report.broken else "clean"


def _places(findings: list[Finding]) -> list[str]:
    """One line for each place in a source: what first, how often, and a case to run again."""
    by_place: dict[tuple[str, str, str, int], list[Finding]] = {}
    for finding in findings:
        key = (finding.tool, finding.kernel, finding.file, finding.line)
        by_place.setdefault(key, []).append(finding)
    lines = []
    for (tool, kernel, file, line), found in by_place.items():
        place = f"{file}:{line}" if file else "no line"
        times = f"{len(found)} times" if len(found) > 1 else "once"
        case = f", first {found[0].case}" if found[0].case else ""
        lines.append(f"{tool}  {kernel}  {place}  {times}{case}\n    {found[0].what}")
    return lines
