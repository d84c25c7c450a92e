"""`dsv4-lab bisect`: the operator, or the commit, where it went wrong."""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np

from dsv4 import registry
from dsv4.runtime.device import open_device
from lab.cases import LEVELS
from lab.cli import settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.debug import forward as passes
from lab.debug.history import Trial, bisect_source
from lab.debug.subjects import TINY, OracleSubject, open_model
from oracle.laws import LAWS

_SUBJECTS = ("kernels", "oracle")


@click.group()
def bisect() -> None:
    """Find the first operator of a forward pass, or the commit, where it went wrong.

    \b
    Example:
      dsv4-lab bisect forward --tiny
      dsv4-lab bisect source v0.1..main -- rms_norm
    """


@bisect.command()
@click.option("--weights", type=click.Path(path_type=Path), metavar="DIR", help="A checkpoint.")
@click.option("--tiny", is_flag=True, help="The tiny checkpoint of the tests.")
@click.option("--subject", type=click.Choice(_SUBJECTS), default="kernels", show_default=True,
              help="The model on our kernels where there are some, or float64.")  # fmt: skip
@click.option("--law", type=click.Choice(list(LAWS)), default="engine", show_default=True,
              help="Which roundings the subject has.")  # fmt: skip
@click.option("--against", type=click.Path(path_type=Path), metavar="DIR",
              help="Another checkpoint of the same shape as the reference.")  # fmt: skip
@click.option("--against-law", type=click.Choice(list(LAWS)), help="The reference's roundings.")
@click.option("--tokens", type=click.IntRange(1), default=24, show_default=True, metavar="N",
              help="Tokens of a sample.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1, 1000), default=4, show_default=True, metavar="N",
              help="How many random sequences.")  # fmt: skip
@click.option("--until", default="", metavar="TAP", help="Stop at the first tap so named.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@click.pass_context
def forward(
    ctx: click.Context,
    weights: Path | None,
    tiny: bool,
    subject: str,
    law: str,
    against: Path | None,
    against_law: str | None,
    tokens: int,
    samples: int,
    until: str,
    backend: str,
) -> None:
    """Find the first kernel of a forward pass whose own error leaves its contract.

    Every tap is shown with the error it inherits and the error it adds by itself, which is measured
    on the float64 model's own inputs.

    \b
    Example:
      dsv4-lab bisect forward --tiny --samples 4
    """
    if (weights is None) == (not tiny):
        raise click.UsageError("name a checkpoint with --weights DIR, or pass --tiny")
    chosen = settings.current()
    folder = TINY if weights is None else weights
    model = open_model(folder, law)
    device = None
    if subject == "kernels":
        device = open_device(backend, index=chosen.device, seed=chosen.seed)
    reference = OracleSubject("reference", open_model(against or folder, against_law or law))
    rng = np.random.default_rng(chosen.seed)
    size = min(tokens, model.config.max_seq_len)
    sequences = [rng.integers(0, model.config.vocab_size, size) for _ in range(samples)]
    found = passes.bisect(OracleSubject(subject, model, device), reference, sequences, until=until)
    if chosen.json:
        text.emit_json("bisect forward", **found.to_json())
    else:
        _show(found, whole=chosen.verbosity > 0)
    ctx.exit(ExitCode.CONTRACT if found.first else ExitCode.OK)


def _show(found: passes.Bisection, *, whole: bool) -> None:
    first = found.first
    shown = found.taps
    if not whole:
        low = max(0, first.number - 4) if first else 0
        high = first.number + 1 if first else 0
        worst = sorted(found.taps, key=lambda t: -t.use)[:8]
        shown = found.taps[low:high] or tuple(sorted(worst, key=lambda t: t.number))
    header = ("#", "tap", "kernel", "inherited rel-l2", "added rel-l2", "bound use", "")
    rows = []
    for tap in shown:
        mark = "<- first broken" if tap is first else ""
        inherited = "other shape" if math.isnan(tap.inherited) else f"{tap.inherited:.1e}"
        rows.append((tap.number, tap.name, tap.kernel, inherited, f"{tap.added:.1e}",
                     f"{tap.use:.2f}", mark))  # fmt: skip
    text.say(text.table(header, rows))
    if first is None:
        text.say(f"\n{len(found.taps)} taps, none leaves its contract; the nearest are above")
        return
    text.say(
        f"\nfirst broken: {first.name}, kernel {first.kernel or 'of several'}, in"
        f" {found.broken_in} of {found.samples} samples\n"
        f"  next  dsv4-lab kernel-diff {first.kernel}, then dsv4-lab probe {first.kernel}"
    )


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
