"""`dsv4-lab compare`: two records, revisions or files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from lab.cases import LEVELS
from lab.cli import exit_codes, settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.record import comparison
from lab.record.comparison import Change
from lab.record.sides import WORKING_TREE, Side, open_side
from lab.record.store import Store

_REASONS = ("contract", "bits", "slow", "spills")


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("-k", "--kernel", "kernels", multiple=True, type=KERNEL, help="Only these kernels.")
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="For a side that is run.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="For a side that is run.")
@click.option("--level", type=click.Choice(LEVELS), default="quick", help="For a side that is run.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="Where a side is run.")  # fmt: skip
@click.option("--fail-on", default=",".join(_REASONS), show_default=True, metavar="LIST",
              help="Which changes are failures.")  # fmt: skip
@click.option("--threshold", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="TOML with [default] and [KERNEL] tables: slower = 0.05.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Say of every change where it is and what to do.")
@click.pass_context
def compare(
    ctx: click.Context,
    a: str,
    b: str | None,
    kernels: tuple[str, ...],
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    level: str,
    backend: str,
    fail_on: str,
    threshold: Path | None,
    explain: bool,
) -> None:
    """Compare two runs: bits, contracts, time, generated code.

    A and B are record numbers, git revisions, or files of `--json kernel-diff` or `records export`.
    Without B, a record is compared with the newest other one, a revision with the working tree.

    \b
    Example:
      dsv4-lab compare 12 --explain
      dsv4-lab compare main -k rms_norm
    """
    reasons = _reasons(fail_on)
    limits = comparison.read_thresholds(threshold)
    chosen = settings.current()
    selection = [*kernels, "--level", level, "--backend", backend, "--seed", str(chosen.seed)]
    selection += [part for p in patterns for part in ("-p", p)]
    selection += [part for n in names for part in ("-c", n)]
    first = open_side(a, chosen.store, selection)
    second = open_side(b or _other(a, chosen.store), chosen.store, selection)
    found = comparison.changes(_only(first, kernels), _only(second, kernels), limits)
    codes = [code for change in found for code in _codes(change, reasons)]
    code = exit_codes.worst(codes) if found else ExitCode.NOTHING_RAN
    if chosen.json:
        text.emit_json(
            "compare",
            a=first.name,
            b=second.name,
            changes=[c.to_json() for c in found],
            exit_codes=sorted(set(map(int, codes))),
        )
    else:
        _show(first, second, found, explain or len(found) <= 3)
    ctx.exit(code)


def _reasons(fail_on: str) -> tuple[str, ...]:
    chosen = tuple(r.strip() for r in fail_on.split(",") if r.strip())
    if unknown := [r for r in chosen if r not in _REASONS]:
        raise click.UsageError(f"--fail-on {', '.join(unknown)}: there are {', '.join(_REASONS)}")
    return chosen


def _other(a: str, store: Path) -> str:
    """What A is compared with when B is not given."""
    bare = a.removeprefix("record:")
    if not bare.isdigit():
        return WORKING_TREE
    existing = Store.open_existing(store)
    runs = []
    if existing is not None:
        with existing:
            runs = [r["id"] for r in existing.runs() if r["results"] and r["id"] != int(bare)]
    if not runs:
        raise click.UsageError(f"compare {a}: {store} holds no other record to compare it with")
    return str(runs[-1])


def _only(side: Side, kernels: tuple[str, ...]) -> Side:
    if not kernels:
        return side
    from dsv4 import registry

    wanted = {s.name for s in registry.match(kernels)}
    return Side(side.name, side.device, tuple(e for e in side.entries if e.kernel in wanted))


def _codes(change: Change, reasons: tuple[str, ...]) -> list[int]:
    found: list[int] = []
    if "contract" in reasons and change.contract_broken:
        found.append(ExitCode.CONTRACT)
    if "bits" in reasons and change.bits not in (comparison.SAME, comparison.NEW):
        found.append(ExitCode.BITS)
    if "slow" in reasons and change.time == comparison.SLOWER:
        found.append(ExitCode.SLOW)
    if "spills" in reasons and change.spills_more:
        found.append(ExitCode.COMPILE)
    return found


def _show(a: Side, b: Side, found: list[Change], explain: bool) -> None:
    text.say(f"A  {a.name}  {a.device}\nB  {b.name}  {b.device}\n")
    shown = [c for c in found if not c.quiet] or found[:20]
    header = ("kernel", "case", "bits", "contract", "A", "B", "B/A", "time", "code")
    text.say(text.table(header, [_row(c) for c in shown]))
    if len(shown) < len(found):
        text.say(f"{len(found) - len(shown)} more without a change")
    for change in shown if explain else ():
        for reason in change.why:
            text.say(f"  {change.kernel} {change.label}: {reason}")
    bits = Counter(c.bits for c in found)
    times = Counter(c.time for c in found if c.time)
    parts = [f"{n} {word}" for word, n in bits.items()]
    text.say(
        f"\n{len(found)} cases  bits: {', '.join(parts) or 'nothing to compare'}"
        + (f"  time: {', '.join(f'{n} {w}' for w, n in times.items())}" if times else "")
    )


def _row(c: Change) -> tuple[object, ...]:
    before, after = text.verdict(c.before), text.verdict(c.after)
    code = ", ".join(f"{name} {x} -> {y}" for name, (x, y) in (c.codegen or {}).items())
    return (
        c.kernel,
        c.label,
        text.verdict(c.bits),
        after if c.before == c.after else f"{before} -> {after}",
        text.scaled(c.a_s, "s"),
        text.scaled(c.b_s, "s"),
        None if c.ratio is None else f"{c.ratio:.2f}",
        text.verdict(c.time),
        code,
    )
