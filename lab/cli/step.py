"""`dsv4-lab step`: what a decode step launches, reads and takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.bench_options import MODEL, ROWS
from lab.cli.exit_codes import ExitCode
from lab.cli.settings import current
from lab.engine_steps import (
    KernelCost,
    Replays,
    StepCost,
    StreamsCost,
    open_engine,
    step_cost,
    streams_cost,
)
from lab.engine_steps import replays as replayed
from lab.record.environment import capture


@click.command("step")
@MODEL
@click.option("--path", "paths", default="device", show_default=True, metavar="LIST",
              help="Decode paths: device, device-hostmath.")  # fmt: skip
@click.option("--context", type=click.IntRange(1), default=32, show_default=True, metavar="N",
              help="Tokens before the step.")  # fmt: skip
@ROWS
@click.option("--streams", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Also decode N sequences in turns, which keep several stages busy.")  # fmt: skip
@click.option("--replays", type=click.IntRange(2), metavar="N",
              help="Also replay the step N times; other bytes leave with 5.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="N",
              help="Steps of which the median is told.")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def step(
    folder: Path,
    paths: str,
    context: int,
    rows: int,
    streams: int,
    replays: int | None,
    repeats: int,
    backend: str,
    devices: str,
    arms: tuple[str, ...],
) -> None:
    """Show launches, bytes and times of a greedy decode step, phase by phase.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:flash,layers=2,experts=16.

    \b
    Example:
      dsv4-lab step tests/data/tiny-s --context 40
    """
    costs, together, again = [], [], []
    for path in paths.split(","):
        chosen = {**switches(arms), "decode_path": path.strip()}
        room = context + max(rows, 1 if streams == 1 else 1 + repeats)
        engine = open_engine(folder, device_list(devices), backend, room, chosen)
        if streams > 1:
            together.append(streams_cost(engine, context=context, streams=streams, repeats=repeats))
        costs.append(step_cost(engine, context=context, rows=rows, repeats=repeats))
        if replays is not None:
            again.append(replayed(engine, context=context, rows=rows, count=replays))
        name = engine.last.device.name
    if current().json:
        text.emit_json(
            "step", model=str(folder), env=capture(engine.last.device), device=name,
            cards=engine.cards,
            steps=[asdict(c) for c in costs],
            streams=[{**asdict(s), "rows_per_s": s.rows_per_s, "gain": s.gain} for s in together],
            replays=[asdict(r) for r in again],
        )  # fmt: skip
    else:
        _tell(costs, together, again, name)
    if any(r.different for r in again):
        raise click.exceptions.Exit(ExitCode.BITS)


def _tell(
    costs: Sequence[StepCost], together: Sequence[StreamsCost], again: Sequence[Replays], name: str
) -> None:
    for cost in costs:
        text.say(_summary(cost, name))
        header = ("phase", "launches", "host calls", "bytes", "us with waits")
        rows_of = [
            (p.phase or "-", p.launches, p.host_calls or None, p.size_bytes, 1e6 * p.time_s)
            for p in cost.phases
        ]
        text.say(text.table(header, rows_of) + "\n")
        if cost.kernels:
            columns = ("kernel", "launches", "bytes", "us in a graph", "us a launch", "GB/s")
            text.say(text.table(columns, [_kernel_row(k) for k in cost.kernels]) + "\n")
    for one in together:
        text.say(
            f"{one.streams} streams in turns: {text.scaled(one.step_s, 's')} a step of all,"
            f" {one.rows_per_s:.1f} rows/s, {one.gain:.2f} times one alone"
            f" ({text.scaled(one.alone_s, 's')})"
        )
    for r in again:
        found = "all left the same bytes"
        if r.different:
            found = f"{r.different} left other bytes, replay {r.first} first"
        text.say(f"{r.count:,} replays in {text.scaled(r.time_s, 's')}: {found}")


def _kernel_row(cost: KernelCost) -> tuple[object, ...]:
    spent_us = 1e6 * cost.graph_s
    rate = cost.size_bytes / cost.graph_s / 1e9
    return cost.kernel, cost.launches, cost.size_bytes, spent_us, spent_us / cost.launches, rate


def _summary(cost: StepCost, device: str) -> str:
    graph_s = cost.graph_s
    replayed = "" if graph_s is None else f" replayed as a graph in {text.scaled(graph_s, 's')},"
    between = ""
    if cost.boundary_bytes:
        between = (
            f"\nbetween stages {text.scaled(cost.boundary_bytes, 'B')} in"
            f" {text.scaled(cost.boundary_s, 's')}, {cost.boundary_s / cost.best_s:.1%} of the step"
        )
    if cost.joins:
        share = cost.joins * cost.join_s / cost.best_s
        between += (
            f"\nranks meet {cost.joins} times, in {text.scaled(cost.join_s, 's')} each,"
            f" {share:.1%} of the step"
        )
    return (
        f"{cost.path} on {device}: position {cost.position}, {cost.rows} rows,"
        f" {cost.launches} launches, {cost.host_calls} host calls,"
        f" {text.scaled(cost.size_bytes, 'B')}\n"
        f"sent in {text.scaled(cost.send_s, 's')}, done in {text.scaled(cost.step_s, 's')},"
        f"{replayed} {cost.rows / cost.best_s:.1f} rows/s,"
        f" {text.scaled(cost.size_bytes / cost.best_s, 'B/s')}{between}"
    )
