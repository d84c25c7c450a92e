"""`dsv4-lab gate`: laws of the engine on a model, and mutations that must break them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from lab.cli import text
from lab.cli.arms import ARMS, switches
from lab.cli.exit_codes import ExitCode
from lab.cli.settings import current
from lab.gates import Outcome, all_gates, bench_of, default_gates, run_gate


@click.command("gate")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Every gate, as without a NAME.")
@click.option("--model", type=click.Path(path_type=Path), default=Path("tests/data/tiny-s"),
              show_default=True, metavar="DIR", help="The checkpoint.")  # fmt: skip
@click.option("--red", is_flag=True, help="Also run the mutations that each gate must notice.")
@click.option("--tokens", type=click.IntRange(12), default=33, show_default=True, metavar="N",
              help="How many tokens are run.")  # fmt: skip
@click.option("--text", "words", type=click.File("rb"), metavar="FILE",
              help="Run the tokens of this text.  [default: recorded or random ones]")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Print the gates and leave.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@ARMS
def gate(
    names: tuple[str, ...],
    everything: bool,
    model: Path,
    red: bool,
    tokens: int,
    words: IO[bytes] | None,
    listed: bool,
    backend: str,
    arms: tuple[str, ...],
) -> None:
    """Check laws of the engine on a checkpoint; all of them without a NAME.

    \b
    Example:
      dsv4-lab gate rows stages --red
    """
    if names and everything:
        raise click.UsageError(f"--all runs every gate; leave out {' '.join(names)}, or --all")
    if listed:
        rows = [(g.name, g.summary, len(g.red)) for g in all_gates().values()]
        text.say(text.table(("gate", "says", "mutations"), rows))
        return
    bench = bench_of(
        model, backend=backend, switches=switches(arms), count=tokens,
        words=None if words is None else words.read(),
    )  # fmt: skip
    chosen = names or default_gates(bench)
    outcomes = []
    with text.progress("gates", len(chosen)) as bar:
        for name in chosen:
            outcomes.append(run_gate(name, bench, red=red))
            bar.update(1)
    failed = [o for o in outcomes if not o.passed]
    if current().json:
        text.emit_json("gate", model=str(model), gates=[_document(o) for o in outcomes])
    for outcome in outcomes:
        _show(outcome)
    text.say(f"{len(outcomes)} gates, {len(failed)} failed")
    sys.exit(ExitCode.CONTRACT if failed else ExitCode.OK)


def _document(outcome: Outcome) -> dict[str, object]:
    return {
        "gate": outcome.gate,
        "holds": outcome.finding.holds,
        "detail": outcome.finding.detail,
        "red": {name: not f.holds for name, f in outcome.red.items()},
        "cannot_matter": {n: f.cannot_matter for n, f in outcome.red.items() if f.cannot_matter},
        "pass": outcome.passed,
    }


def _show(outcome: Outcome) -> None:
    word = text.verdict("PASS" if outcome.passed else "FAIL")
    text.say(f"{word}  {outcome.gate}: {all_gates()[outcome.gate].summary}")
    text.say(f"      {outcome.finding.detail}")
    for name, finding in outcome.red.items():
        said = "not noticed, so this gate is vacuous" if finding.holds else finding.detail
        if finding.cannot_matter:
            said = f"cannot matter here: {finding.cannot_matter}"
        text.say(f"      red  {name}: {said}")
