"""`dsv4-lab watch`: save a source, see what changed."""

from __future__ import annotations

import threading

import click

from dsv4 import registry
from dsv4.runtime.device import open_device
from lab import session
from lab.cli import settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.debug import watch as watching
from lab.debug.watch import Round
from lab.run import RunOptions


@click.command()
@click.argument("kernels", nargs=-1, type=KERNEL, required=True)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="Where to run.")  # fmt: skip
@click.option("--mode", type=click.Choice(["run", "shuffle", "check"]), default="run",
              help="Host only: fast, random thread order, or fault checking.")  # fmt: skip
@click.option("--bench/--no-bench", default=True, help="Time the first case of each round.")
@click.option("--until-green", is_flag=True, help="End with exit 0 once every case passes.")
@click.pass_context
def watch(
    ctx: click.Context,
    kernels: tuple[str, ...],
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    backend: str,
    mode: str,
    bench: bool,
    until_green: bool,
) -> None:
    """Compile and compare kernels again whenever their source or a header is saved.

    Only what changed since the last round is shown. Ctrl-C ends it. Nothing is recorded.

    \b
    Example:
      dsv4-lab watch rms_norm --until-green
    """
    chosen = settings.current()
    if chosen.json:
        raise click.UsageError("watch prints rounds, not one document; leave --json away")
    specs = registry.match(kernels)
    device = open_device(backend, index=chosen.device, mode=mode, seed=chosen.seed)
    work = session.plan(specs, patterns=patterns, names=names, mode=mode)
    if not work:
        text.note("no case matches\n  see the cases with: dsv4-lab show KERNEL")
        ctx.exit(ExitCode.NOTHING_RAN)
    files = watching.watched(sorted({s.family for s in specs}))
    text.say(
        f"{len(work)} cases on {device.name}; watching {len(files)} files of {files[0].parent}"
    )
    options = RunOptions(seed=chosen.seed, relaunch=2)
    before: Round | None = None
    stop = threading.Event()
    try:
        for after in watching.rounds(work, device, options, bench=bench, stop=stop):
            _show(before, after)
            if not after.problem:
                before = after
            if until_green and after.green:
                ctx.exit(ExitCode.OK)
    except KeyboardInterrupt:
        text.note("\nended")
        ctx.exit(ExitCode.INTERRUPTED)


def _show(before: Round | None, after: Round) -> None:
    saved = ", ".join(path.name for path in after.changed)
    text.say(f"\nround {after.number}" + (f"  saved {saved}" if saved else ""), bold=True)
    if after.problem:
        text.say(f"{text.verdict('FAIL')}  {after.problem}")
        return
    found = watching.deltas(before, after)
    moved = [d for d in found if before is None and d.after.verdict != "PASS" or not d.quiet]
    shown = moved if before is not None else [d for d in moved if d.after.verdict != "PASS"]
    for delta in shown:
        text.say(f"  {delta.kernel} {delta.label}  {delta.text()}")
    timed = next((d for d in found if d.after.timing is not None), None)
    if timed is not None and timed not in shown:
        text.say(f"  {timed.kernel} {timed.label}  {timed.text()}")
    passed = sum(d.after.verdict == "PASS" for d in found)
    word = text.verdict("PASS" if after.green else "FAIL")
    quiet = f", {len(found) - len(shown)} as before" if before is not None else ""
    text.say(f"  {passed} of {len(found)} pass{quiet}  {word}")
