"""`dsv4-lab bench`: kernels, layers, steps and speculative rounds by one set of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.cli.arms import DEVICES, device_list, switches
from lab.cli.bench_kernels import kernels
from lab.cli.bench_options import CONTEXT, MODEL, ROWS, SAMPLES, arms_and_place
from lab.cli.bench_run import BenchRun

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


bench.add_command(kernels)


@bench.command("layer")
@MODEL
@CONTEXT
@ROWS
@DEVICES
@SAMPLES
@arms_and_place
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
@MODEL
@CONTEXT
@ROWS
@DEVICES
@SAMPLES
@arms_and_place
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
@MODEL
@click.option("--prompt", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Random tokens before the first round.")  # fmt: skip
@click.option("-n", "count", type=click.IntRange(8), default=64, show_default=True, metavar="N",
              help="How many tokens.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1, 8), metavar="T", help="Rows of a round at most.")
@click.option("--accept", type=click.FloatRange(0, 1), metavar="SHARE",
              help="Read drafts from a script, each right with this probability.")  # fmt: skip
@DEVICES
@arms_and_place
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

    from lab.bench.rounds import HOW, bench_rounds
    from lab.spec_run import with_drafter

    run, arms = _begin(common)
    chosen = arms if accept is not None else [with_drafter(folder, a) for a in arms]
    made = run.engines(folder, device_list(devices), prompt + max(count, 8), chosen)
    run.measure_roofs(HOW)
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
