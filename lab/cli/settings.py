"""Options that every command takes, before or after its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from lab.cli.types import ARCHITECTURES
from lab.record.store import default_path


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options of one invocation.

    verbosity: -1 with -q, 0, 1 with -v. arch: empty when not given. given: which were given.
    """

    json: bool = False
    verbosity: int = 0
    color: bool = True
    device: int = 0
    arch: tuple[str, ...] = ()
    store_path: Path | None = None
    seed: int = 0
    debug: bool = False

    @property
    def store(self) -> Path:
        """The record store: --store, else DSV4_STORE, else .lab/lab.db."""
        return self.store_path or default_path()

    @property
    def quiet(self) -> bool:
        """Whether people text is reduced to results and errors."""
        return self.verbosity < 0


def current() -> Settings:
    """The settings of the running command; the defaults outside of one."""
    context = click.get_current_context(silent=True)
    settings = context.obj if context is not None else None
    return settings if isinstance(settings, Settings) else Settings()


def global_options() -> list[click.Option]:
    """Fresh Option objects, one set for each command."""
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            help="Print one JSON document on standard output and nothing else there.",
            expose_value=False,
            callback=_keep(lambda s, on: replace(s, json=True) if on else s),
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            help="Print results and errors only.",
            expose_value=False,
            callback=_keep(lambda s, on: replace(s, verbosity=-1) if on else s),
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            help="Print more.",
            expose_value=False,
            callback=_keep(lambda s, on: replace(s, verbosity=1) if on else s),
        ),
        click.Option(
            ["--no-color"],
            is_flag=True,
            help="Print without colour; NO_COLOR does the same.",
            expose_value=False,
            callback=_keep(lambda s, on: replace(s, color=False) if on else s),
        ),
        click.Option(
            ["--device"],
            type=click.IntRange(min=0),
            metavar="N",
            help="Use the GPU with this index.  [default: 0]",
            expose_value=False,
            callback=_keep(lambda s, n: s if n is None else replace(s, device=n)),
        ),
        click.Option(
            ["--arch"],
            type=ARCHITECTURES,
            metavar="LIST",
            help="Build for these architectures, such as sm_90a,sm_120a.",
            expose_value=False,
            callback=_keep(lambda s, arch: replace(s, arch=arch) if arch else s),
        ),
        click.Option(
            ["--store"],
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Keep records here.  [default: DSV4_STORE or .lab/lab.db]",
            expose_value=False,
            callback=_keep(lambda s, path: s if path is None else replace(s, store_path=path)),
        ),
        click.Option(
            ["--seed"],
            type=click.IntRange(min=0),
            metavar="N",
            help="Make inputs from this seed.  [default: 0]",
            expose_value=False,
            callback=_keep(lambda s, n: s if n is None else replace(s, seed=n)),
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            help="Show the traceback of an error.",
            expose_value=False,
            callback=_keep(lambda s, on: replace(s, debug=True) if on else s),
        ),
    ]


def _keep(change: Callable[[Settings, Any], Settings]) -> Callable[..., None]:
    """A Click callback that folds one option into the settings of the root context."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        settings = change(context.obj if isinstance(context.obj, Settings) else Settings(), value)
        # A command copies its group's object when it starts, before its own options are read.
        level: click.Context | None = context
        while level is not None:
            level.obj = settings
            if not settings.color or os.environ.get("NO_COLOR"):
                level.color = False
            level = level.parent

    return callback
