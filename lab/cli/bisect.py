"""`dsv4-lab bisect`: the operator, or the commit, where it went wrong."""

from __future__ import annotations

import click

from dsv4 import registry
from lab.cases import LEVELS
from lab.cli import settings, text
from lab.cli.bisect_forward import forward
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.debug.history import Trial, bisect_source


@click.group()
def bisect() -> None:
    """Find the first operator of a forward pass, or the commit, where it went wrong.

    \b
    Example:
      dsv4-lab bisect forward --tiny
      dsv4-lab bisect source v0.1..main -- rms_norm
    """


bisect.add_command(forward)


@bisect.command()
@click.argument("span", metavar="GOOD..BAD")
@click.argument("kernels", nargs=-1, type=KERNEL, required=True)
@click.option("--on", type=click.Choice(["bits", "contract", "time"]), default="bits",
              show_default=True, help="What changed.")  # fmt: skip
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--level", type=click.Choice(LEVELS), default="quick", help="How much to run.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@click.pass_context
def source(
    ctx: click.Context,
    span: str,
    kernels: tuple[str, ...],
    on: str,
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    level: str,
    backend: str,
) -> None:
    """Find the commit that changed a kernel's bits, contract or time.

    Only sources in cuda/ are taken from the commits; declarations and cases are those of now.

    \b
    Example:
      dsv4-lab bisect source v0.1..main -- rms_norm
    """
    good, dots, bad = span.partition("..")
    if not dots or not good or not bad:
        raise click.UsageError(f"{span!r} is no range; write GOOD..BAD")
    selection = [s.name for s in registry.match(kernels)]
    selection += ["--level", level, "--backend", backend, "--seed", str(settings.current().seed)]
    selection += [part for p in patterns for part in ("-p", p)]
    selection += [part for n in names for part in ("-c", n)]
    found = bisect_source(good, bad, selection, on=on, tell=_tell)
    if settings.current().json:
        text.emit_json(
            "bisect source",
            first=found.first.to_json(),
            trials=[t.to_json() for t in found.trials],
            unsure=list(found.unsure),
        )
    text.say(f"first with other {on}: {found.first.subject}\n  {found.first.why}")
    if found.unsure:
        text.say(f"  {len(found.unsure)} commits right before it could not be run")
    ctx.exit(ExitCode.BITS if on == "bits" else ExitCode.SLOW if on == "time"
             else ExitCode.CONTRACT)  # fmt: skip


def _tell(trial: Trial) -> None:
    text.note(f"  {trial.state:<8} {trial.subject}  {trial.why}")
