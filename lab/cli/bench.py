"""`dsv4-lab bench`: kernels, layers, steps and speculative rounds by one set of rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lab.cli import text
from lab.cli.arms import DEVICES, device_list, switches
from lab.cli.bench_run import BenchRun
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL

# Global options whose value is not the first word.
_WITH_VALUES = frozenset({"--device", "--arch", "--store", "--seed"})


class BenchGroup(click.Group):
    """The group of what can be timed; a first word that is none of them is a kernel."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The rest of the arguments, with `kernels` put where no subcommand stands."""
        words = iter(args)
        first = None
        for word in words:
            if not word.startswith("-"):
                first = word
                break
            if word in _WITH_VALUES:
                next(words, None)
        if first not in self.commands and not {"-h", "--help"} & set(args):
            args = ["kernels", *args]
        return super().parse_args(ctx, args)


@click.group("bench", cls=BenchGroup)
def bench() -> None:
    """Time kernels, layers, steps and rounds: cold, against the roof of reading, or arm by arm.

    KERNELS may follow directly: bench linear_fp8 is bench kernels linear_fp8. Without a GPU the
    seconds are those of the CPU and say nothing about one.

    \b
    Example:
      dsv4-lab bench linear_fp8 -c wq_b
      dsv4-lab bench step mint:flash,layers=43,experts=160 --context 200 --against branches=on
    """


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every subcommand."""
    options = (
        click.option("--arm", "arm", multiple=True, metavar="NAME=VALUE",
                     help="Switch or build option of arm A; may come again."),
        click.option("--against", multiple=True, metavar="NAME=VALUE",
                     help="The same of arm B, which is timed in turns with A and compared."),
        click.option("--samples", type=click.IntRange(1, 1000), default=15, show_default=True,
                     metavar="N", help="Samples of each arm."),
        click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
                     help="Where to run."),
        click.option("--no-record", is_flag=True, help="Do not write to the store."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


_MODEL = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_CONTEXT = click.option("--context", type=click.IntRange(1), default=200, show_default=True,
                        metavar="N", help="Tokens before the step.")  # fmt: skip
_ROWS = click.option("--rows", type=click.IntRange(1, 8), default=1, show_default=True,
                     metavar="N", help="Rows of the step, as a verify round has them.")  # fmt: skip


@bench.command("kernels")
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--rival", type=click.Choice(["torch"]), help="Time what is installed beside them.")
@_common
def kernels(
    kernels: tuple[str, ...],
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    rival: str | None,
    arm: tuple[str, ...],
    against: tuple[str, ...],
    samples: int,
    backend: str,
    no_record: bool,
) -> None:
    """Time kernels at the sizes of the model, each behind its contract.

    Without -c or -p the declared cases are timed, on a CPU the small ones of them. With --rival
    each is timed in turns with what the package offers for the same work, checked first.

    \b
    Example:
      dsv4-lab bench kernels linear_fp8 -c wq_b
      dsv4-lab bench kernels --rival torch
    """
    from lab.bench.chosen import plan
    from lab.bench.kernels import arms_of, bench_case

    run = BenchRun.begin(backend, no_record)
    arms = [arms_of(arm), arms_of(against)] if against else [arms_of(arm)]
    if rival is not None:
        from lab.bench.rivals import bench_rivals, rival_plan

        work = rival_plan(kernels, patterns=patterns, names=names, on_host=run.on_host)
    else:
        work = plan(kernels, patterns=patterns, names=names, on_host=run.on_host)
        wanted = {name for some in arms for name in some}
        if wanted:
            work = [(s, c) for s, c in work if wanted <= {o.name for o in s.options}]
    if not work:
        text.note("nothing to time: no case of these kernels fits\n  name one with -c or -p")
        raise click.exceptions.Exit(ExitCode.NOTHING_RAN)
    run.measure_roofs()
    with run.keeping_what_is_done(), text.progress("cases", len(work)) as bar:
        for spec, case in work:
            if rival is not None:
                rows, against_each = bench_rivals(
                    spec, case, run.device, run.roofs, seed=run.seed, samples=samples
                )
                run.keep(rows, *against_each)
            else:
                found, pair = bench_case(
                    spec, case, run.device, run.roofs, arms=arms, seed=run.seed, samples=samples
                )
                run.keep(found, pair)
            bar.update(1)
    run.end("kernels")


@bench.command("layer")
@_MODEL
@_CONTEXT
@_ROWS
@DEVICES
@_common
def layer(folder: Path, context: int, rows: int, devices: str, **common: Any) -> None:
    """Time one layer of each kind: window only, ratio 4, ratio 128.

    DIR is a checkpoint folder, or mint:SIZE with settings. All layers of a kind take turns, so
    that their weights come from memory; the time is that of one.

    \b
    Example:
      dsv4-lab bench layer mint:flash,layers=6 --context 200
    """
    from lab.bench.layers import bench_layers

    run, arms = _begin(common)
    made = run.engines(folder, device_list(devices), context + rows, arms)
    run.measure_roofs()
    found, pairs = bench_layers(
        made, arms, run.roofs, model=str(folder), context=context, rows=rows,
        samples=common["samples"], seed=run.seed,
    )  # fmt: skip
    run.keep(found, *pairs)
    run.end("layer")


@bench.command("step")
@_MODEL
@_CONTEXT
@_ROWS
@DEVICES
@_common
def step(folder: Path, context: int, rows: int, devices: str, **common: Any) -> None:
    """Time a whole greedy decode step, and each kernel of it alone.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:flash,layers=43,experts=160. Two
    arms share one set of weights unless they differ in how weights are held.

    \b
    Example:
      dsv4-lab bench step mint:flash,layers=4,experts=16 --context 200 --rows 2
    """
    from lab.bench.steps import bench_step

    run, arms = _begin(common)
    made = run.engines(folder, device_list(devices), context + rows, arms)
    run.measure_roofs()
    found, pair = bench_step(
        made, arms, run.roofs, model=str(folder), context=context, rows=rows,
        samples=common["samples"], seed=run.seed,
    )  # fmt: skip
    run.keep(found, pair)
    run.end("step")


@bench.command("spec")
@_MODEL
@click.option("--prompt", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Random tokens before the first round.")  # fmt: skip
@click.option("-n", "count", type=click.IntRange(8), default=64, show_default=True, metavar="N",
              help="How many tokens.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1, 8), metavar="T", help="Rows of a round at most.")
@click.option("--accept", type=click.FloatRange(0, 1), metavar="SHARE",
              help="Read drafts from a script, each right with this probability.")  # fmt: skip
@DEVICES
@_common
def spec(
    folder: Path,
    prompt: int,
    count: int,
    depth: int | None,
    accept: float | None,
    devices: str,
    **common: Any,
) -> None:
    """Time speculative rounds; their tokens must be those of plain decoding.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:flash,layout=0731,agree=0.8.

    \b
    Example:
      dsv4-lab bench spec mint:tiny,layout=0731,agree=0.8 --prompt 9 -n 32
    """
    import numpy as np

    from lab.bench.rounds import bench_rounds
    from lab.spec_run import with_drafter

    run, arms = _begin(common)
    chosen = arms if accept is not None else [with_drafter(folder, a) for a in arms]
    made = run.engines(folder, device_list(devices), prompt + max(count, 8), chosen)
    ids = np.random.default_rng(run.seed).integers(0, made[0].config.vocab_size, prompt).tolist()
    found, pair = bench_rounds(
        made, arms, model=str(folder), prompt=ids, count=count, depth=depth, accept=accept,
        seed=run.seed,
    )  # fmt: skip
    run.keep(found, pair)
    run.end("spec")


def _begin(common: dict[str, Any]) -> tuple[BenchRun, list[dict[str, str | None]]]:
    run = BenchRun.begin(common["backend"], common["no_record"])
    arms = [switches(common["arm"])]
    if common["against"]:
        arms.append(switches(common["against"]))
    return run, arms
