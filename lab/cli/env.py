"""`dsv4-lab env`: what a record would say about this machine."""

from __future__ import annotations

from typing import Any

import click

from lab.cli import text
from lab.cli.settings import current
from lab.record.environment import capture


@click.command()
def env() -> None:
    """Show hardware, driver, compilers, libraries, switches and commit.

    Looks only; no setting is changed.

    \b
    Example:
      dsv4-lab env --json
    """
    from dsv4.runtime.device import cuda_problem, open_device

    chosen = current()
    device = open_device("auto", index=chosen.device)
    captured = capture(device, ask_cuda=True)
    if chosen.json:
        text.emit_json("env", env=captured, cuda_problem=cuda_problem())
        return
    text.say(text.table(("what", "value"), _flat(captured)))


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as dotted names and values."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", "-" if value is None else str(value)))
    return rows
