"""`dsv4-lab timeline`: what each kernel of a step takes between its neighbours."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from dsv4.runtime.device import open_device
from lab.cli import text
from lab.cli.arms import ARMS, switches
from lab.cli.bench_options import CONTEXT, MODEL, ROWS
from lab.cli.settings import current
from lab.record.environment import capture
from lab.timeline import Placed, Timeline
from lab.timeline import timeline as measured


@click.command("timeline")
@MODEL
@CONTEXT
@ROWS
@click.option("--repeats", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Replays of which the median is told.")  # fmt: skip
@ARMS
def timeline(folder: Path, context: int, rows: int, repeats: int, arms: tuple[str, ...]) -> None:
    """Tell what each kernel of a step takes in its graph, between its neighbours.

    A launch has the time from the end of its wait for the one in front to the end of the next
    one's wait, so that all of them add up to the step. Needs a GPU.

    \b
    Example:
      dsv4-lab timeline mint:flash,layers=43,experts=160
    """
    device = current().device
    found = measured(
        folder, context=context, rows=rows, repeats=repeats, index=device, arms=switches(arms)
    )
    env = capture(open_device("cuda", index=device))
    if current().json:
        text.emit_json("timeline", model=str(folder), env=env, timeline=asdict(found))
    else:
        _tell(found, env["device"])


def _tell(found: Timeline, name: str) -> None:
    text.say(
        f"step at position {found.position} with {found.rows} rows on {name}:"
        f" {text.scaled(found.span_s, 's')} between the waits of {found.launches} launches"
    )
    header = ("kernel", "launches", "ms in all", "us in place", "begins before, us", "GB/s")
    text.say(text.table(header, [_row(kernel) for kernel in found.kernels]))
    if found.without:
        text.say(f"without a wait, in the time of the one in front: {', '.join(found.without)}")


def _row(kernel: Placed) -> tuple[object, ...]:
    rate = kernel.size_bytes / kernel.total_s / 1e9 if kernel.total_s else None
    return (
        kernel.kernel, kernel.launches, 1e3 * kernel.total_s, 1e6 * kernel.place_s,
        1e6 * kernel.early_s, rate,
    )  # fmt: skip
