"""The options of drawn tokens, shared by commands that emit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dsv4.speculation.sampling import SpecSampling

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--temperature", type=click.FloatRange(0), default=0.0, metavar="T",
                 help="Draw tokens at this temperature; 0 is greedy."),
    click.option("--top-k", type=click.IntRange(0), default=0, metavar="K",
                 help="Draw among the K largest; 0 is off."),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
                 help="Draw among the largest of this mass; 1 is off."),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, metavar="P",
                 help="Draw among tokens at least this likely beside the likeliest; 0 is off."),
)  # fmt: skip


def sampling_options(command: Command) -> Command:
    """The command with --temperature, --top-k, --top-p and --min-p."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> SpecSampling | None:
    """How tokens are drawn; None when they are greedy. Errors: DrafterRefusal."""
    if temperature == 0:
        return None
    return SpecSampling(temperature, seed, top_k, top_p, min_p).checked()
