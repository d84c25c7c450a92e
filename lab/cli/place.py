"""`dsv4-lab place`: which layers go where, and how many bytes that takes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from dsv4.checkpoint.census import Census, open_artifact
from dsv4.checkpoint.mint import MintPlan
from dsv4.engine.opening import DEFAULT_POSITIONS, tail_of
from dsv4.engine.placement import SPARE_BYTES, plan_placement
from dsv4.engine.source import open_source
from dsv4.engine.switches import resolve_arms
from dsv4.runtime.device import cuda_problem, open_device
from lab.cli import text
from lab.cli.arms import ARMS, device_list, switches
from lab.cli.exit_codes import ExitCode
from lab.cli.settings import current
from lab.minted import model_of


@click.command("place")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--devices", default="0", show_default=True, metavar="LIST",
              help="A device for each stage: 0,1. They need not be there.")  # fmt: skip
@click.option("--split-at", metavar="LIST", help="First layers of the later stages.")
@click.option("--max-seq", type=click.IntRange(1), metavar="N",
              help="Positions of a sequence.  [default: the model's, up to 8192]")  # fmt: skip
@click.option("--memory", "memory_gb", type=click.FloatRange(0, min_open=True), metavar="GB",
              help="What each device has free.  [default: ask it, if it is there]")  # fmt: skip
@ARMS
def place(
    path: Path,
    devices: str,
    split_at: str | None,
    max_seq: int | None,
    memory_gb: float | None,
    arms: tuple[str, ...],
) -> None:
    """Show the stages of a checkpoint on devices, from its headers alone.

    DIR is a checkpoint folder, a file of headers, or mint:SIZE with settings. Leaves with 1 when a
    device is too small.

    \b
    Example:
      dsv4-lab place tests/data/tiny-s --devices 0,1
    """
    census = _census(path)
    chosen = resolve_arms(**{**switches(arms), "split_at": split_at})
    config = census.config
    longest = max_seq or min(config.usable_positions, DEFAULT_POSITIONS)
    tail = tail_of(census, chosen, str(path))
    placement = plan_placement(
        census, chosen, devices=device_list(devices), max_seq=longest, tail=tail
    )
    free = _free(device_list(devices), memory_gb)
    needed: dict[int, int] = {}
    for stage in placement.stages:
        needed[stage.device] = needed.get(stage.device, 0) + stage.size_bytes
    small = [d for d, size in needed.items() if d in free and size + SPARE_BYTES > free[d]]
    if current().json:
        text.emit_json(
            "place", path=str(path), max_seq=longest, split_at=placement.split_at,
            stages=[{**asdict(s), "bytes": s.size_bytes} for s in placement.stages],
            free_bytes=free, too_small=small,
        )  # fmt: skip
    text.say(placement.table(free))
    for device in small:
        text.say(
            f"device {device} is too small: {needed[device] / 1e9:.2f} GB and"
            f" {SPARE_BYTES / 1e9:.2f} GB to spare"
        )
    sys.exit(ExitCode.CONTRACT if small else ExitCode.OK)


def _census(path: Path) -> Census:
    """What a folder, a file of headers or a plan holds. Errors: Refusal."""
    model = model_of(path)
    if isinstance(model, MintPlan):
        return open_source(model).census
    return open_artifact(model, headers_only=True).census


def _free(devices: tuple[int, ...], memory_gb: float | None) -> dict[int, int]:
    if memory_gb is not None:
        return {d: int(memory_gb * 1e9) for d in devices}
    if cuda_problem() is not None:
        return {}
    from cupy.cuda.runtime import getDeviceCount

    there = [d for d in dict.fromkeys(devices) if d < getDeviceCount()]
    return {d: open_device("cuda", index=d).memory_bytes()[0] for d in there}
