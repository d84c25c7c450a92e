"""Options that every command on one case of one kernel takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lab.cli.types import CASE_NAMES, CASE_PATTERN, KERNEL

_MODES = ("run", "shuffle", "check")


def one_case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds KERNEL, -p, -c, --backend and --mode."""
    options = (
        click.argument("kernel", type=KERNEL),
        click.option("-p", "patterns", multiple=True, type=CASE_PATTERN, help="Axes, as 'T=7'."),
        click.option("-c", "names", multiple=True, type=CASE_NAMES, help="The case's name."),
        click.option(
            "--backend",
            type=click.Choice(["auto", "host", "cuda"]),
            default="auto",
            help="Where to run.",
        ),
        click.option(
            "--mode",
            type=click.Choice(_MODES),
            default="run",
            help="Host only: fast, random thread order, or fault checking.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
