"""`dsv4-lab doctor`: what is missing here, and the line that gets it."""

from __future__ import annotations

import click

from lab.cli import text
from lab.cli.exit_codes import ExitCode
from lab.cli.settings import current
from lab.diagnosis import Finding, examine

_WORDS = {"ok": "ok", "missing": "MISSING", "optional": "-"}


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Say what works here, what is missing, and how to get it.

    Leaves with 0 when kernels can run on some backend.

    \b
    Example:
      dsv4-lab doctor
    """
    findings = examine(current().store)
    usable = _usable(findings)
    if current().json:
        text.emit_json("doctor", usable=usable, findings=[f.to_json() for f in findings])
    else:
        rows = [(f.name, text.verdict(_WORDS[f.state]), f.detail, f.fix) for f in findings]
        text.say(text.table(("what", "state", "found", "to get it"), rows))
        text.say(f"\nbackends that can run: {', '.join(usable) or 'none'}")
    ctx.exit(ExitCode.OK if usable else ExitCode.NOTHING_RAN)


def _usable(findings: list[Finding]) -> list[str]:
    """The backends that can run kernels."""
    states = {f.name: f.state for f in findings}
    return [
        backend
        for backend, needed in (("host", ("compiler",)), ("cuda", ("nvrtc", "gpu")))
        if all(states[name] == "ok" for name in needed)
    ]
