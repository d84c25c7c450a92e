"""`dsv4-lab bench kernels`: kernels at the sizes of the model, alone or beside rivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lab.cli import text
from lab.cli.bench_options import SAMPLES, arms_and_place
from lab.cli.bench_run import BenchRun
from lab.cli.exit_codes import ExitCode
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL

if TYPE_CHECKING:
    from dsv4.spec import KernelSpec
    from lab.bench.chosen import Work
    from lab.cases import Case


@click.command("kernels")
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--rival", type=click.Choice(["torch"]), help="Time what is installed beside them.")
@SAMPLES
@arms_and_place
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
    from lab.bench.kernels import arms_of

    arms = [arms_of(arm), arms_of(against)] if against else [arms_of(arm)]
    if rival is not None and (arm or against):
        raise click.UsageError("--rival is about our kernels as they are: give no --arm with it")
    run = BenchRun.begin(backend, no_record)
    work = _work(run, kernels, patterns, names, arms, rival)
    if not work:
        text.note("nothing to time: no case of these kernels fits\n  name one with -c or -p")
        raise click.exceptions.Exit(ExitCode.NOTHING_RAN)
    run.measure_roofs()
    with run.keeping_what_is_done(), text.progress("cases", len(work)) as bar:
        for spec, case in work:
            _time_one(run, spec, case, arms, rival, samples)
            bar.update(1)
    run.end("kernels")


def _work(
    run: BenchRun,
    kernels: tuple[str, ...],
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    arms: list[dict[str, int]],
    rival: str | None,
) -> Work:
    """The cases of kernels that have a rival, or the options of the arms."""
    from lab.bench.chosen import plan
    from lab.bench.rivals import rival_plan

    choose = plan if rival is None else rival_plan
    found = choose(kernels, patterns=patterns, names=names, on_host=run.on_host)
    wanted = {name for some in arms for name in some}
    return [(s, c) for s, c in found if wanted <= {o.name for o in s.options}]


def _time_one(
    run: BenchRun,
    spec: KernelSpec,
    case: Case,
    arms: list[dict[str, int]],
    rival: str | None,
    samples: int,
) -> None:
    from lab.bench import kernels, rivals

    if rival is None:
        found, pair = kernels.bench_case(
            spec, case, run.device, run.roofs, arms=arms, seed=run.seed, samples=samples
        )
        run.keep(found, pair)
        return
    rows, pairs = rivals.bench_rivals(
        spec, case, run.device, run.roofs, seed=run.seed, samples=samples
    )
    run.keep(rows, *pairs)
