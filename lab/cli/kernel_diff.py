"""`dsv4-lab kernel-diff`: run kernels against their oracles and keep the record."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dsv4 import registry
from dsv4.errors import StoreError
from dsv4.runtime.device import open_device
from lab import against, session, workers
from lab.cases import LEVELS
from lab.cli import exit_codes, result_text, settings, text
from lab.cli.baselines import open_baseline
from lab.cli.exit_codes import ExitCode
from lab.cli.keeping import finish, keep, save
from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL
from lab.record.environment import summary_line
from lab.recording import Recorder
from lab.result import FAIL, PASS, CaseResult
from lab.run import RunOptions

_FAILING = Path(".lab") / "failing"
_MODES = ("run", "shuffle", "check")


@click.command("kernel-diff")
@click.argument("kernels", nargs=-1, type=KERNEL)
@click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=1,D>=128'.")
@click.option("-c", "names", multiple=True, type=CASE_NAMES, help="Case names, comma-separated.")
@click.option("--level", type=click.Choice(LEVELS), default="quick", help="How much to run.")
@click.option(
    "--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto", help="Where to run."
)
@click.option(
    "--mode",
    type=click.Choice(_MODES),
    default="run",
    help="Host only: fast, random thread order, or fault checking.",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take weights from a safetensors checkpoint.",
)
@click.option("--tensor", metavar="NAME", help="With --weights: this tensor only.")
@click.option(
    "--against",
    "baseline",
    default="oracle",
    metavar="WHAT",
    help="oracle, golden, golden:DIR, record:ID, build:REV or file:PATH.",
)
@click.option(
    "--relaunch",
    type=click.IntRange(1, 10_000),
    default=3,
    help="Launches of each case, which must give the same bytes.",
)
@click.option("--top", type=click.IntRange(0, 50), default=5, help="Worst rows to print.")
@click.option(
    "--what-if",
    metavar="CONTRACT",
    help="Report on exact, ulp(N) or within(KIND, DEPTH); never decides.",
)
@click.option("--guard/--no-guard", default=True, help="Guard zones around every array.")
@click.option("--poison/--no-poison", default=True, help="Poison outputs before each launch.")
@click.option("--time/--no-time", "timed", default=True, help="Time each case.")
@click.option(
    "--save-failing",
    type=click.Path(path_type=Path),
    default=_FAILING,
    metavar="DIR",
    help="Where cases that fail are written.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that does not pass.")
@click.option("--isolate", is_flag=True, help="Run every case in a process of its own.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Run cases in N processes; those on one GPU take turns there.",
)
@click.option("--ray", metavar="ADDRESS", help="Run cases on a Ray cluster.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write this run as one HTML file.",
)
@click.option("--no-record", is_flag=True, help="Do not write to the store.")
def kernel_diff(**options: Any) -> None:
    """Run kernels against their float64 oracles, byte by byte, and keep the record.

    KERNELS are names, families, globs or prefixes; every kernel without one.

    Example: dsv4-lab kernel-diff rms_norm -p T=7
    """
    chosen = settings.current()
    begin = time.monotonic()
    run_options = _run_options(chosen.seed, options)
    names = [s.name for s in registry.match(options["kernels"])]
    again = functools.partial(_plan, names, options)
    reopen = functools.partial(
        open_device,
        options["backend"],
        index=chosen.device,
        mode=options["mode"],
        seed=chosen.seed,
    )
    work, device = again(), reopen()
    if not work:
        raise click.exceptions.Exit(_nothing(options))
    baseline = open_baseline(options, work, device)
    recorder = Recorder(chosen.store, device, enabled=not options["no_record"])
    text.say(f"env  {summary_line(recorder.env)}  seed {chosen.seed}\n")
    if options["workers"] or options["ray"]:
        stream = _spread(work, device, run_options, again, options, chosen)
    elif options["isolate"]:
        stream = session.run_isolated(
            work, device, run_options, again=again, reopen=reopen, fail_fast=options["fail_fast"]
        )
    else:
        stream = session.run(work, device, run_options, fail_fast=options["fail_fast"])
    problem: StoreError | None = None
    results: list[CaseResult] = []
    codes: list[int] = []
    rows: list[dict[str, Any]] = []
    try:
        with text.progress("cases", len(work)) as bar:
            for result in stream:
                results.append(result)
                file = save(options["save_failing"], work, result)
                problem = keep(recorder, result, file)
                bytes_verdict = baseline.verdict(result) if baseline else None
                codes += _codes(result, bytes_verdict)
                rows.append({**result.to_json(), "against": bytes_verdict})
                _show(result, file, bytes_verdict, detailed=len(work) <= 12 or chosen.verbosity > 0)
                bar.update(1)
                if problem is not None:
                    codes.append(exit_codes.code_for(problem))
                    break
    except KeyboardInterrupt:
        codes.append(ExitCode.INTERRUPTED)
        text.note(f"interrupted; {len(results)} finished results are kept")
    del stream  # ends workers that still run
    if problem is None:
        problem = finish(recorder, exit_codes.worst(codes))
        codes += [exit_codes.code_for(problem)] if problem else []
    code = exit_codes.worst(codes)
    tally = session.tally(results)
    if chosen.json:
        text.emit_json(
            "kernel-diff",
            env=recorder.env,
            summary=tally.to_json(),
            run=recorder.run_id,
            exit_codes=sorted(set(map(int, codes))),
            results=rows,
            error={"class": type(problem).__name__, "message": str(problem)} if problem else None,
        )
    if options["report"] is not None and rows:
        _report(options["report"], rows, device, summary_line(recorder.env))
    seconds = time.monotonic() - begin
    text.say(
        "\n" + result_text.closing(tally, seconds=seconds, run_id=recorder.run_id, exit_code=code)
    )
    sys.exit(code)


def _spread(
    work: session.Work,
    device: Any,
    run_options: RunOptions,
    again: functools.partial[session.Work],
    options: dict[str, Any],
    chosen: settings.Settings,
) -> Iterator[CaseResult]:
    """The results of `--workers` or `--ray`.

    On host without timings, because CPUs are shared; workers on one GPU take turns there instead.
    """
    if device.backend == "host" and run_options.time:
        run_options = replace(run_options, time=False)
        text.note("several processes share this CPU, so nothing is timed")
    job, fail_fast = workers.Job(again, run_options), options["fail_fast"]

    def reopen(index: int) -> functools.partial[Any]:
        return functools.partial(
            open_device, device.backend, index=index, mode=options["mode"], seed=chosen.seed
        )

    if options["ray"]:
        return workers.run_ray(work, device, job, reopen(0), options["ray"], fail_fast=fail_fast)
    count, cards = options["workers"], 1
    if device.backend == "cuda":
        cards = device.xp.cuda.runtime.getDeviceCount()
        job = replace(job, options=replace(run_options, turns=count > cards))
    places = [reopen(n % cards) for n in range(count)]
    return workers.run_workers(work, device, job, places, fail_fast=fail_fast)


def _report(file: Path, rows: list[dict[str, Any]], device: Any, facts: str) -> None:
    from lab.cli.report import write
    from lab.report.content import Gathered

    found = Gathered(tuple({**row, "run": 0} for row in rows), (facts,))
    write(file, found, device)
    text.note(f"report in {file}")


def _plan(names: list[str], options: dict[str, Any]) -> session.Work:
    return session.plan(
        [registry.spec(n) for n in names],
        patterns=options["patterns"],
        names=[n for group in options["names"] for n in group.split(",")],
        level=options["level"],
        mode=options["mode"],
        weights=options["weights"],
        tensor=options["tensor"],
    )


def _run_options(seed: int, options: dict[str, Any]) -> RunOptions:
    what_if = options["what_if"]
    return RunOptions(
        seed=seed,
        relaunch=options["relaunch"],
        guard=options["guard"],
        poison=options["poison"],
        time=options["timed"],
        top=options["top"],
        what_if=session.parse_contract(what_if) if what_if else None,
    )


def _nothing(options: dict[str, Any]) -> int:
    text.note(
        "no case matches: "
        + ", ".join(f"{k} {v}" for k, v in options.items() if v and k in ("patterns", "names"))
        + f" at level {options['level']}, mode {options['mode']}\n"
        "  see the cases with: dsv4-lab show KERNEL"
    )
    return ExitCode.NOTHING_RAN


def _codes(result: CaseResult, bytes_verdict: str | None) -> list[int]:
    found: list[int] = []
    if result.verdict == FAIL:
        found.append(ExitCode.CONTRACT)
    elif result.verdict != PASS:
        found.append(exit_codes.code_for_name(result.error_class))
    if bytes_verdict not in (None, against.SAME):
        found.append(ExitCode.BITS)
    return found


def _show(
    result: CaseResult, file: Path | None, bytes_verdict: str | None, *, detailed: bool
) -> None:
    if detailed or result.verdict != PASS:
        text.say(result_text.block(result, replay=file))
    else:
        text.say(result_text.one_line(result))
    if bytes_verdict is not None:
        text.say(f"  against {bytes_verdict}")
