"""`dsv4-lab spec`: speculative decoding beside plain decoding of the same prompt."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.exit_codes import ExitCode
from lab.cli.prompts import whole_numbers
from lab.cli.sampling import chosen_sampling, sampling_options
from lab.cli.settings import current
from lab.engine_steps import open_engine
from lab.record.environment import capture
from lab.spec_run import DepthRun, SpecReport, spec_report, with_drafter


@click.command("spec")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--ids", required=True, metavar="LIST", help="Token ids of the prompt: 3,5,7.")
@click.option("-n", "count", type=click.IntRange(1), default=32, show_default=True, metavar="N",
              help="How many tokens at most.")  # fmt: skip
@click.option("--depth", default="", metavar="T[..T]",
              help="Rows of a round: 4, or 1..4 for a run each.  [default: most]")  # fmt: skip
@click.option("--accept", type=click.FloatRange(0, 1), metavar="SHARE",
              help="Read drafts from a script, each right with this probability.")  # fmt: skip
@sampling_options
@click.option("--stop", metavar="LIST", default="", help="Token ids that end it.")
@click.option("--cost/--no-cost", default=True, help="Measure rounds of every number of rows.")
@click.option("--max-seq", type=click.IntRange(1), metavar="N",
              help="Make room for this many positions.  [default: prompt and N]")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def spec(
    folder: Path,
    ids: str,
    count: int,
    depth: str,
    accept: float | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    stop: str,
    cost: bool,
    max_seq: int | None,
    backend: str,
    devices: str,
    arms: tuple[str, ...],
) -> None:
    """Decode a prompt with drafts and without, and compare tokens, rounds and times.

    DIR is a checkpoint folder, or mint:SIZE with settings, such as mint:tiny,layout=0731,agree=0.8.
    Leaves with 1 when the tokens differ.

    \b
    Example:
      dsv4-lab spec tests/data/tiny-s --ids 3,5,7 -n 24 --depth 1..4
    """
    prompt, depths = list(whole_numbers(ids)), _depths(depth)
    sampling = chosen_sampling(temperature, top_k, top_p, min_p, current().seed)
    chosen = switches(arms) if accept is not None else with_drafter(folder, switches(arms))
    # Costs are measured behind the prompt, whatever is generated.
    room = max_seq or len(prompt) + max(count, 8)
    engine = open_engine(folder, device_list(devices), backend, room, chosen)
    report = spec_report(
        engine, prompt, count, depths=depths, accept=accept, sampling=sampling,
        stop=set(whole_numbers(stop)), costs=cost,
    )  # fmt: skip
    if current().json:
        last = report.runs[-1]
        text.emit_json(
            "spec",
            model=str(folder),
            env=capture(engine.last.device),
            stages=len(engine.stages),
            cards=engine.cards,
            plain_s=report.plain_s,
            plain_step_s=report.plain_step_s,
            identity=report.identity,
            first_difference=next(
                (r.first_difference for r in report.runs if not r.identity), None
            ),
            prompt=prompt,
            tokens=last.run.tokens,
            plain=report.plain,
            rounds=_rounds(last),
            tokens_per_round=last.run.tokens_per_round,
            acceptance=last.run.acceptance(),
            depths=[_summary(r) for r in report.runs],
            cost_of_t=[{"rows": c.rows, "time_s": c.time_s, "relative": c.relative}
                       for c in report.costs],
            cost_fit=report.fit,
            arms=engine.arms.to_json(),
            device=engine.last.device.name,
        )  # fmt: skip
    else:
        _show(report, engine.last.device.name)
    sys.exit(ExitCode.OK if report.identity else ExitCode.CONTRACT)


def _depths(words: str) -> list[int]:
    """The depths of a number or a range. Errors: UsageError."""
    first, _, last = words.partition("..")
    if not words:
        return []
    if not first.isdigit() or (".." in words and not last.isdigit()):
        raise click.UsageError(f"--depth {words} is no number of rows such as 4 or 1..4")
    found = list(range(int(first), int(last or first) + 1))
    if not found or found[0] < 1:
        raise click.UsageError(f"--depth {words} names no rows; a round has 1 at least")
    return found


def _rounds(run: DepthRun) -> list[dict[str, object]]:
    return [
        {
            "start": r.start,
            "drafted": list(r.drafts),
            "accepted": r.accepted,
            "verified": r.judged,
            "emitted": r.emitted,
            "rows": r.rows,
            "time_s": r.time_s,
        }
        for r in run.run.rounds
    ]


def _summary(run: DepthRun) -> dict[str, object]:
    return {
        "depth": run.depth,
        "identity": run.identity,
        "rounds": len(run.run.rounds),
        "tokens_per_round": run.run.tokens_per_round,
        "accept_digest": run.run.accept_digest,
        "time_s": sum(r.time_s for r in run.run.rounds),
        "round_s": float(np.median([r.time_s for r in run.run.rounds])),
    }


def _show(report: SpecReport, device: str) -> None:
    for run in report.runs:
        word = text.verdict("SAME" if run.identity else "FAIL")
        where = "" if run.identity else f" from token {run.first_difference} on"
        shares = ", ".join(f"{a}/{n}" for a, n in run.run.acceptance())
        text.say(
            f"{word}  depth {run.depth}: {len(run.run.tokens)} tokens in {len(run.run.rounds)}"
            f" rounds, {run.run.tokens_per_round:.2f} a round{where}; accepted by place {shares}"
        )
    for cost in report.costs:
        text.say(
            f"      {cost.rows} rows: {text.scaled(cost.time_s, 's')}, {cost.relative:.2f} of one"
        )
    if report.fit is not None:
        text.say(f"      cost(T)/cost(1) = {report.fit[0]:.3f} + {report.fit[1]:.3f} T")
    spent = text.scaled(report.plain_s, "s")
    text.note(f"plain decoding of {len(report.plain)} tokens took {spent} on {device}")
