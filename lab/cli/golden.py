"""`dsv4-lab golden`: check outputs against accepted digests, and let a person accept changes."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from dsv4 import registry
from dsv4.runtime.device import open_device
from lab import session
from lab.cases import LEVELS
from lab.cli import golden_text, settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.record import golden as goldens
from lab.record.golden import Finding
from lab.record.golden_files import Row, key_of, label_of, read


def _where(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --folder."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=goldens.FOLDER,
        metavar="DIR",
        help="Where the goldens lie; tests/golden of the checkout by default.",
    )(command)


@click.group()
def golden() -> None:
    """Check outputs against golden digests; a changed one waits until a person accepts it.

    \b
    Example:
      dsv4-lab golden check rms_norm
      dsv4-lab golden review
    """


@golden.command()
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--level", type=click.Choice(LEVELS), default="quick", help="How much to run.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@_where
@click.pass_context
def check(
    ctx: click.Context,
    kernels: tuple[str, ...],
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    level: str,
    backend: str,
    folder: Path,
) -> None:
    """Run cases and compare their bytes with the goldens; changes become pending.

    \b
    Example:
      dsv4-lab golden check rms_norm
    """
    chosen = settings.current()
    specs = registry.match(kernels)
    device = open_device(backend, index=chosen.device, seed=chosen.seed)
    work = session.plan(specs, patterns=patterns, names=names, level=level)
    found: list[Finding] = []
    with text.progress("golden", len(work)) as bar:
        for finding in goldens.check(work, folder, device, chosen.seed):
            found.append(finding)
            bar.update(1)
    found += goldens.missing(specs, folder)
    pending = goldens.keep_pending(found)
    _show(found, pending=pending)
    if not found:
        ctx.exit(ExitCode.NOTHING_RAN)
    bad = any(f.verdict != goldens.SAME for f in found)
    ctx.exit(ExitCode.BITS if bad else ExitCode.OK)


def _show(found: list[Finding], *, pending: int) -> None:
    counts = Counter(f.verdict for f in found)
    if settings.current().json:
        summary = {word: counts[word] for word in ("SAME", "FAIL", "NEW", "MISSING")}
        rows = [f.to_json() for f in found]
        text.emit_json("golden check", summary=summary, pending=pending, findings=rows)
        return
    for f in found:
        if f.verdict != goldens.SAME:
            text.say(f"{text.verdict(f.verdict):<8} {f.kernel}  {f.label}\n         {f.why}")
    text.say(f"{len(found)} goldens: " + ", ".join(f"{n} {w}" for w, n in counts.items()))
    if pending:
        text.note(f"{pending} pending; look at them with: dsv4-lab golden review")


@golden.command()
@click.option("-k", "--kernel", "kernels", multiple=True, type=KERNEL, help="Only these kernels.")
@_where
@click.pass_context
def review(ctx: click.Context, kernels: tuple[str, ...], folder: Path) -> None:
    """Look at each pending change and accept it, reject it, or leave it for later.

    \b
    Example:
      dsv4-lab golden review -k rms_norm
    """
    pending = _pending(kernels)
    if not pending:
        text.note("nothing is pending; dsv4-lab golden check finds what changed")
        return
    accepted: list[Row] = []
    rejected: list[Row] = []
    for number, row in enumerate(pending, 1):
        text.say(golden_text.page(row, _golden_of(row, folder), number, len(pending)))
        answer = _ask()
        if answer == "q":
            break
        if answer == "a" and row["verdict"] != "PASS":
            text.say("  not accepted: it does not hold its contract; correct the kernel first\n")
            continue
        {"a": accepted, "r": rejected}.get(answer, []).append(row)
        text.say({"a": "  accepted\n", "r": "  rejected\n"}.get(answer, "  left pending\n"))
    changed = goldens.accept(folder, accepted, _families()) if accepted else []
    goldens.drop_pending([*accepted, *rejected])
    text.say(f"{len(accepted)} accepted, {len(rejected)} rejected of {len(pending)} pending")
    for path in changed:
        text.say(f"  wrote {path}; add a line under Numerics in CHANGELOG.md")
    ctx.exit(ExitCode.OK)


def _ask() -> str:
    """One of a, r, s and q: a single key on a terminal, else a line."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip()[:1].lower() if line else "q"
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        # Keys typed ahead are kept, and Ctrl-C still interrupts.
        tty.setcbreak(terminal, termios.TCSADRAIN)
        click.echo("[a]ccept  [r]eject  [s]kip  [q]uit? ", nl=False, err=True)
        while (key := os.read(terminal, 1).decode(errors="replace").lower()) not in "arsq":
            pass
        click.echo(key or "q", err=True)
        return key or "q"
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@golden.command()
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("--all", "everything", is_flag=True, help="Accept all that is pending.")
@_where
def accept(kernels: tuple[str, ...], everything: bool, folder: Path) -> None:
    """Accept pending changes without looking at each.

    \b
    Example:
      dsv4-lab golden accept rms_norm
    """
    if not kernels and not everything:
        raise click.UsageError("name kernels, or pass --all")
    rows = _pending(kernels)
    changed = goldens.accept(folder, rows, _families())
    goldens.drop_pending(rows)
    if settings.current().json:
        text.emit_json("golden accept", accepted=len(rows), files=[str(p) for p in changed])
        return
    text.say(f"{len(rows)} accepted" + "".join(f"\n  wrote {path}" for path in changed))


@golden.command()
@_where
def prune(folder: Path) -> None:
    """Take out goldens of kernels, cases and declarations that are gone.

    \b
    Example:
      dsv4-lab golden prune
    """
    gone = goldens.prune(folder, registry.match(()))
    if settings.current().json:
        text.emit_json("golden prune", deleted=len(gone))
        return
    for row in gone:
        text.say(f"  {row['kernel']}  {label_of(row)}  {row['arch']} {row['compiler']}")
    text.say(f"{len(gone)} goldens deleted")


def _pending(kernels: tuple[str, ...]) -> list[Row]:
    names = {s.name for s in registry.match(kernels)}
    return [r for r in read(goldens.PENDING).values() if r["kernel"] in names]


def _families() -> dict[str, str]:
    return {name: k.spec.family for name, k in registry.kernels().items()}


def _golden_of(row: Row, folder: Path) -> Row | None:
    path = folder / f"{_families()[row['kernel']]}.jsonl"
    return read(path).get(key_of(row))
