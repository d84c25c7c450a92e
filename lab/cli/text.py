"""How commands print: tables, verdicts and messages for people, one document for machines.

Results go to standard output; progress, warnings and, with --json, everything for people go to
standard error.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import click

from lab.cli.settings import current

_COLORS = {
    "PASS": "green",
    "SAME": "green",
    "FASTER": "green",
    "FAIL": "red",
    "ERROR": "red",
    "SLOWER": "red",
    "MISSING": "yellow",
    "AMBIGUOUS": "yellow",
    "NEW": "cyan",
}
_LARGEST = sys.float_info.max
_open_bars: list[str] = []


def say(text: str = "", *, bold: bool = False) -> None:
    """Print a line of results for people; on standard error with --json."""
    if _open_bars and sys.stdout.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)  # a bar stands on this line; it comes again
    click.secho(text, bold=bold or None, err=current().json)


def note(text: str) -> None:
    """Print a remark on standard error, unless -q was given."""
    if not current().quiet:
        click.echo(text, err=True)


def warn(text: str) -> None:
    """Print what went wrong on standard error, also with -q."""
    click.echo(f"{click.style('error', fg='red', bold=True)}: {text}", err=True)


def verdict(word: str) -> str:
    """The verdict word, coloured where it is one of the fixed ones."""
    return click.style(word, fg=_COLORS[word]) if word in _COLORS else word


def emit_json(command: str, **content: Any) -> None:
    """Print the command's document: `{"schema": 1, "command": ..., ...}`.

    NaN becomes null and infinities the largest finite number: JSON has no words for them.
    """
    document = {"schema": 1, "command": command, **content}
    click.echo(json.dumps(_plain(document), indent=1, allow_nan=False, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(_LARGEST, value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns under a header; numbers to the right, None as a dash.

    Units belong into the header. A column whose cells are all empty is left out.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [_all_numbers([row[i] for row in cells]) for i in range(len(header))]
    used = [i for i in range(len(header)) if not cells or any(row[i] for row in cells)]
    widths = [max([len(header[i]), *(len(click.unstyle(row[i])) for row in cells)]) for i in used]
    lines = []
    for row in ([*header], *cells):
        parts = [
            _pad(row[i], width, right=numeric[i]) for i, width in zip(used, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _all_numbers(cells: Sequence[str]) -> bool:
    shown = [c for c in cells if c not in ("-", "")]
    digits = (c.lstrip("+-").replace(".", "").split("e")[0] for c in shown)
    return bool(shown) and all(d.isdigit() for d in digits)


def _pad(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - len(click.unstyle(cell)))
    return space + cell if right else cell + space


class Bar(Protocol):
    """What `progress` gives: call `update(1)` after each step."""

    def update(self, n_steps: int) -> None:
        """Move the bar on."""


@contextlib.contextmanager
def progress(label: str, length: int) -> Iterator[Bar]:
    """A bar on standard error, inside the `with`.

    Nothing is drawn when standard error is no terminal, with --json, or with -q.
    """
    chosen = current()
    if chosen.json or chosen.quiet or not sys.stderr.isatty():
        yield _NoBar()
        return
    _open_bars.append(label)
    try:
        with click.progressbar(length=length, label=label, file=sys.stderr, show_pos=True) as bar:
            yield bar
    finally:
        _open_bars.pop()


class _NoBar:
    def update(self, n_steps: int) -> None:
        pass


def scaled(value: float | None, unit: str) -> str:
    """A number with an SI prefix and its unit, three digits: `4.1e-6, "s"` is `4.10 us`."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    prefixes = "pnum kMGTP"
    step = max(-4, min(5, math.floor(math.log10(abs(value)) / 3)))
    prefix = prefixes[step + 4].strip()
    return f"{value / 1000.0**step:.3g} {prefix}{unit}"
