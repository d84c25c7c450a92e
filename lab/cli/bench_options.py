"""Options that the parts of `bench` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

SAMPLES = click.option("--samples", type=click.IntRange(1, 1000), default=15, show_default=True,
                        metavar="N", help="Samples of each arm.")  # fmt: skip
MODEL = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
CONTEXT = click.option("--context", type=click.IntRange(1), default=200, show_default=True,
                        metavar="N", help="Tokens before the step.")  # fmt: skip
ROWS = click.option("--rows", type=click.IntRange(1, 8), default=1, show_default=True,
                     metavar="N", help="Rows of the step, as a verify round has them.")  # fmt: skip


def arms_and_place(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of every part: two arms, a backend, the record."""
    options = (
        click.option("--arm", "arm", multiple=True, metavar="NAME=VALUE",
                     help="Switch or build option of arm A; may come again."),
        click.option("--against", multiple=True, metavar="NAME=VALUE",
                     help="The same of arm B, which is timed in turns with A and compared."),
        click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
                     help="Where to run."),
        click.option("--no-record", is_flag=True, help="Do not write to the store."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
