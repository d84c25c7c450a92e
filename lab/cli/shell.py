"""`dsv4-lab shell`: a prompt with a case's arrays."""

from __future__ import annotations

import click

from dsv4.runtime.device import open_device
from lab.cli import settings
from lab.cli.choices import one_case_options
from lab.debug.choose import one_case
from lab.debug.shell import interact
from lab.debug.stand import Stand
from lab.page import one_spec


@click.command()
@one_case_options
def shell(
    kernel: str, patterns: tuple[str, ...], names: tuple[str, ...], backend: str, mode: str
) -> None:
    """Open a prompt with inputs, outputs and oracle values of one case.

    Inputs have their own names; got, ref, ref64, diff and bits are results; launch(),
    rebuild(define={"NAME": 1}) and where(mask) work on them.

    \b
    Example:
      dsv4-lab shell rms_norm -p T=7
    """
    if settings.current().json:
        raise click.UsageError("a prompt prints no document; leave --json away")
    spec = one_spec(kernel)
    seed = settings.current().seed
    device = open_device(backend, index=settings.current().device, mode=mode, seed=seed)
    interact(Stand(spec, one_case(spec, patterns, names), device, seed))
