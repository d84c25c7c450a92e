"""`dsv4-lab mint`: a checkpoint in a published layout, made from a seed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.checkpoint.published import LAYOUTS, SIZES
from dsv4.runtime.device import open_device
from lab.cli import text
from lab.cli.settings import current

_LAYOUT_HELP = "; ".join(f"{name}: {layout.summary}" for name, layout in LAYOUTS.items())


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--layout", type=click.Choice(list(LAYOUTS)), default="0731", show_default=True,
              help=f"{_LAYOUT_HELP}.")  # fmt: skip
@click.option("--size", type=click.Choice(list(SIZES)), default="tiny", show_default=True,
              help="Widths: flash and pro are the published ones, tiny is 12 MB.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1), metavar="N",
              help="Keep the first N layers of the trunk.")  # fmt: skip
@click.option("--experts", type=click.IntRange(1), metavar="E",
              help="Give every layer E routed experts.")  # fmt: skip
@click.option("--agree", "agreeing", type=click.FloatRange(0, 1), metavar="SHARE",
              help="Speak a simple language; the drafter knows this much of it.")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="Where contents are made; the bytes are the same.")  # fmt: skip
def mint(
    out: Path,
    layout: str,
    size: str,
    layers: int | None,
    experts: int | None,
    agreeing: float | None,
    backend: str,
) -> None:
    """Make a checkpoint with published names, types and layout, and healthy random weights.

    OUT is a new folder; it appears when everything is in it. A tensor's content depends on the seed
    and its name alone.

    \b
    Example:
      dsv4-lab mint /tmp/flash-2 --size flash --layers 2 --experts 16 --seed 7
    """
    plan = plan_mint(
        size, layout, seed=current().seed, layers=layers, experts=experts, agreeing=agreeing
    )
    device = open_device(backend, index=current().device)
    begin = time.monotonic()
    with text.progress("mint", plan.size_bytes) as bar:
        write_checkpoint(plan, out, device=device, progress=bar.update)
    time_s, files = time.monotonic() - begin, len(plan.shards())
    if current().json:
        text.emit_json(
            "mint", path=str(out), layout=layout, size=size, seed=plan.seed,
            layers=plan.config.n_layers, experts=plan.config.n_routed_experts,
            tensors=len(plan.entries), files=files, bytes=plan.size_bytes, time_s=time_s,
        )  # fmt: skip
        return
    text.say(
        f"{out}: {len(plan.entries)} tensors, {files} safetensors, {plan.size_bytes} bytes,"
        f" {size} {layout}, {plan.config.n_layers} layers, {plan.config.n_routed_experts} experts,"
        f" seed {plan.seed}, {time_s:.1f} s on {device.name}"
    )
