"""`dsv4-lab report`: the store as one HTML file."""

from __future__ import annotations

import re
from pathlib import Path

import click
import numpy as np

from dsv4 import registry
from dsv4.runtime.device import Device, open_device
from lab.cli import settings, text
from lab.cli.exit_codes import ExitCode
from lab.cli.types import KERNEL
from lab.debug.engine_forward import bisect_engine, watched_engine
from lab.debug.forward import Bisection
from lab.debug.subjects import TINY
from lab.report.content import Gathered, gather, parts
from lab.report.page import render

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?")


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
              default=Path("report.html"), show_default=True, metavar="FILE")  # fmt: skip
@click.option("--since", default="", metavar="DATE", help="Only runs from 2026-01-31 on, say.")
@click.option("-k", "--kernel", "kernels", multiple=True, type=KERNEL, help="Only these kernels.")
@click.option("--again/--no-again", default=True, show_default=True,
              help="Launch the worst cases again for their error maps.")  # fmt: skip
@click.option("--tiny", is_flag=True, help="Add the forward pass of the tiny checkpoint.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@click.pass_context
def report(
    ctx: click.Context,
    output: Path,
    since: str,
    kernels: tuple[str, ...],
    again: bool,
    tiny: bool,
    backend: str,
) -> None:
    """Write verdicts, histograms, error maps, roofline and history as one HTML file.

    The file needs no network and no script. Every figure has its table under it.

    \b
    Example:
      dsv4-lab report -o report.html --since 2026-01-31
    """
    if since and not _DATE.fullmatch(since):
        raise click.UsageError(f"--since {since!r} is no date; write it like 2026-01-31")
    chosen = settings.current()
    names = [s.name for s in registry.match(kernels)] if kernels else []
    found = gather(chosen.store, since=since.replace(" ", "T"), kernels=names)
    if not found.rows:
        text.note(f"no results in {chosen.store}; dsv4-lab kernel-diff makes some")
        ctx.exit(ExitCode.NOTHING_RAN)
    device = open_device(backend, index=chosen.device) if again or tiny else None
    write(output, found, device if again else None, forward_of(device) if tiny and device else None)
    size = output.stat().st_size
    if chosen.json:
        text.emit_json("report", file=str(output), bytes=size, results=len(found.rows))
        return
    text.say(f"{output}  {text.scaled(size, 'B')}, {len(found.rows)} results")


def forward_of(device: Device) -> Bisection:
    """The bisection of the engine's forward pass on the tiny checkpoint, two samples."""
    engine = watched_engine(TINY, device, max_seq=24)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, engine.config.vocab_size, 24) for _ in range(2)]
    return bisect_engine(engine, sequences)[0]


def write(
    output: Path, found: Gathered, device: Device | None, forward: Bisection | None = None
) -> None:
    """Write the page in one go, or leave the old one."""
    page = render("dsv4-lab report", found.facts, parts(found, device, forward))
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(output.name + ".new")
    fresh.write_text(page, encoding="utf-8")
    fresh.replace(output)
