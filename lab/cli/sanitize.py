"""`dsv4-lab sanitize`: memory and race checking of kernels."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from dsv4 import registry
from dsv4.runtime.device import cuda_problem, open_device
from lab import session
from lab.cli import exit_codes, settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import KERNEL
from lab.result import PASS
from lab.run import RunOptions
from lab.tools.sanitizer import TOOLS, Finding, finding_of
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

    Example: dsv4-lab sanitize rms_norm --tool racecheck
    """
    names = [s.name for s in registry.match(kernels)]
    if backend == "auto":
        backend = "host" if cuda_problem() else "cuda"
    if backend == "host":
        sys.exit(_check_mode(names, level))
    chosen = [t.strip() for t in tools.split(",") if t.strip()]
    if unknown := [t for t in chosen if t not in TOOLS]:
        raise click.UsageError(f"no tool {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    findings: list[Finding] = []
    complete = True
    rows = []
    for tool in chosen:
        report = run_tool(tool, names, arguments=["--level", level], padding=padding)
        findings += report.findings
        complete &= report.complete
        state = "clean" if report.complete and not report.findings else "FINDINGS"
        rows.append([tool, report.cases, len(report.findings), state])
        if not report.complete:
            text.note(f"{tool} did not close with its summary:\n{report.log[-800:]}")
    text.say(text.table(["tool", "cases", "findings", "state"], rows))
    for finding in findings:
        place = f"{finding.file}:{finding.line}" if finding.file else "no line"
        text.say(f"  {finding.tool}  {finding.kernel}  {place}  {finding.what}")
    if settings.current().json:
        text.emit_json(
            "sanitize",
            backend="cuda",
            tools=[dict(zip(("tool", "cases", "findings", "state"), r, strict=True)) for r in rows],
            findings=[asdict(f) for f in findings],
        )
    sys.exit(ExitCode.SANITIZER if findings or not complete else ExitCode.OK)


def _check_mode(names: list[str], level: str) -> int:
    """The host backend's check mode over the same kernels, printed like a tool."""
    device = open_device("host", mode="check")
    work = session.plan([registry.spec(n) for n in names], level=level, mode="check")
    results = list(session.run(work, device, RunOptions(time=False, relaunch=1)))
    broken = [r for r in results if r.verdict != PASS]
    state = "FINDINGS" if broken else "clean"
    header = ["tool", "cases", "findings", "state"]
    text.say(text.table(header, [["host check", len(results), len(broken), state]]))
    for row in _places([finding_of(r) for r in broken], [r.label for r in broken]):
        text.say(f"  {row}")
    if settings.current().json:
        text.emit_json(
            "sanitize",
            backend="host",
            tools=[{"tool": "check", "cases": len(results), "findings": len(broken),
                    "state": state}],
            findings=[asdict(finding_of(r)) for r in broken],
            results=[r.to_json() for r in results],
        )  # fmt: skip
    codes = [
        exit_codes.code_for_name(r.error_class) if r.error else ExitCode.CONTRACT for r in broken
    ]
    return exit_codes.worst(codes)


def _places(findings: list[Finding], labels: list[str]) -> list[str]:
    """One line for each place in a source: what first, in how many cases, and one to run again."""
    by_place: dict[tuple[str, str, int], list[tuple[Finding, str]]] = {}
    for finding, label in zip(findings, labels, strict=True):
        key = (finding.kernel, finding.file, finding.line)
        by_place.setdefault(key, []).append((finding, label))
    lines = []
    for (kernel, file, line), found in by_place.items():
        place = f"{file}:{line}" if file else "no line"
        first, label = found[0]
        cases = f"{len(found)} case{'s' if len(found) > 1 else ''}, first {label}"
        lines.append(f"{kernel}  {place}  {cases}\n    {first.what}")
    return lines
