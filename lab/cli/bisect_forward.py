"""`dsv4-lab bisect forward`: the launch, or the operator, where a forward pass goes wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from dsv4 import registry
from dsv4.runtime.device import Device, open_device
from lab.cli import result_text, settings, text
from lab.cli.arms import ARMS, switches
from lab.cli.exit_codes import ExitCode
from lab.cli.keeping import save
from lab.debug import forward as passes
from lab.debug.engine_forward import Broken, bisect_engine, watched_engine
from lab.debug.subjects import TINY, OracleSubject, open_model
from lab.result import CaseResult
from lab.run import RunOptions, run_case
from oracle.laws import LAWS

_FAILING = Path(".lab") / "failing"


@click.command()
@click.option("--weights", type=click.Path(path_type=Path), metavar="DIR", help="A checkpoint.")
@click.option("--tiny", is_flag=True, help="The tiny checkpoint of the tests.")
@click.option("--subject", type=click.Choice(("engine", "oracle")), default="engine",
              show_default=True,
              help="The engine, or the float64 model beside another one.")  # fmt: skip
@click.option("--law", type=click.Choice(list(LAWS)), default="engine", show_default=True,
              help="Which roundings the subject has.")  # fmt: skip
@ARMS
@click.option("--against", type=click.Path(path_type=Path), metavar="DIR",
              help="Oracle only: a checkpoint of the same shape as the reference.")  # fmt: skip
@click.option("--against-law", type=click.Choice(list(LAWS)),
              help="Oracle only: the reference's roundings.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(2), default=24, show_default=True, metavar="N",
              help="Tokens of a sample.")  # fmt: skip
@click.option("--steps", type=click.IntRange(0), default=2, show_default=True, metavar="N",
              help="Engine only: how many of them are decode steps.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1, 1000), default=4, show_default=True, metavar="N",
              help="How many random sequences.")  # fmt: skip
@click.option("--until", default="", metavar="TAP", help="Stop at the first tap so named.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@click.option("--save-failing", type=click.Path(path_type=Path), default=_FAILING, metavar="DIR",
              help="Where the first broken launch is written, to be run again.")  # fmt: skip
@click.pass_context
def forward(ctx: click.Context, /, **options: Any) -> None:
    """Find the first kernel of a forward pass whose own error leaves its contract.

    Every launch of a prompt and of some decode steps is judged on the inputs that it would have if
    all launches before it had been right, so its added error is its own.

    \b
    Example:
      dsv4-lab bisect forward --tiny --samples 4
    """
    if (options["weights"] is None) == (not options["tiny"]):
        raise click.UsageError("name a checkpoint with --weights DIR, or pass --tiny")
    chosen = settings.current()
    folder = options["weights"] or TINY
    again: CaseResult | None = None
    file: Path | None = None
    if options["subject"] == "engine":
        found, again, file = _of_engine(folder, options)
    else:
        found = _of_models(folder, options)
    if chosen.json:
        text.emit_json(
            "bisect forward",
            **found.to_json(),
            replay=str(file) if file else None,
            result=again.to_json() if again else None,
        )
    else:
        _show(found, whole=chosen.verbosity > 0)
        if again is not None:
            text.say(f"\n{result_text.block(again, replay=file)}")
    ctx.exit(ExitCode.CONTRACT if found.first else ExitCode.OK)


def _of_engine(
    folder: Path, options: dict[str, Any]
) -> tuple[passes.Bisection, CaseResult | None, Path | None]:
    """The engine's launches; the first broken one again, and the file that replays it."""
    if options["against"] or options["against_law"]:
        raise click.UsageError(
            "--against and --against-law are for --subject oracle: the engine's launches are held"
            " against their own oracles"
        )
    tokens, steps = options["tokens"], options["steps"]
    if steps >= tokens:
        raise click.UsageError(f"--steps {steps} leaves no prompt of --tokens {tokens}; give fewer")
    chosen = settings.current()
    device = open_device(options["backend"], index=chosen.device, seed=chosen.seed)
    arms = switches(options["arms"])
    engine = watched_engine(folder, device, law=options["law"], switches=arms, max_seq=tokens)
    sequences = _sequences(engine.config.vocab_size, tokens, options["samples"])
    with text.progress("samples", len(sequences)) as bar:
        found, broken = bisect_engine(
            engine, sequences, steps=steps, until=options["until"], tell=bar.update
        )
    if broken is None:
        return found, None, None
    return found, *_again(broken, device, options["save_failing"])


def _of_models(folder: Path, options: dict[str, Any]) -> passes.Bisection:
    """The float64 model under one law or checkpoint against another."""
    model = open_model(folder, options["law"])
    other = open_model(options["against"] or folder, options["against_law"] or options["law"])
    size = min(options["tokens"], model.config.max_seq_len)
    sequences = _sequences(model.config.vocab_size, size, options["samples"])
    subject, reference = OracleSubject("subject", model), OracleSubject("reference", other)
    return passes.bisect(subject, reference, sequences, until=options["until"])


def _sequences(vocabulary: int, size: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(settings.current().seed)
    return [rng.integers(0, vocabulary, size) for _ in range(count)]


def _again(broken: Broken, device: Device, folder: Path) -> tuple[CaseResult, Path | None]:
    """The broken launch alone on its inputs, and the case file that replays it."""
    spec = registry.spec(broken.kernel)
    options = RunOptions(time=False, seed=settings.current().seed)
    result = run_case(spec, broken.case, device, options)
    return result, save(folder, [(spec, broken.case)], result)


def _show(found: passes.Bisection, *, whole: bool) -> None:
    first = found.first
    shown = found.taps
    if not whole:
        low = max(0, first.number - 4) if first else 0
        high = first.number + 1 if first else 0
        worst = sorted(found.taps, key=lambda t: -t.use)[:8]
        near = tuple(t for t in found.taps if low <= t.number < high)
        shown = near or tuple(sorted(worst, key=lambda t: t.number))
    header = ("#", "tap", "kernel", "inherited rel-l2", "added rel-l2", "bound use", "")
    rows = []
    for tap in shown:
        mark = "<- first broken" if tap is first else ""
        inherited = "other shape" if math.isnan(tap.inherited) else f"{tap.inherited:.1e}"
        rows.append((tap.number, tap.name, tap.kernel, inherited, f"{tap.added:.1e}",
                     f"{tap.use:.2f}", mark))  # fmt: skip
    text.say(text.table(header, rows))
    if first is None:
        text.say(
            f"\n{len(found.taps)} taps, none leaves its contract; the nearest are above\n"
            "  a wrong argument shows elsewhere: model-diff --subject engine --against oracle"
        )
        return
    text.say(
        f"\nfirst broken: {first.name}, kernel {first.kernel or 'of a library'}, in"
        f" {found.broken_in} of {found.samples} samples\n"
        f"  next  dsv4-lab kernel-diff {first.kernel}, then dsv4-lab probe {first.kernel}"
    )
