"""The report's page: one HTML file with its style inside, no script and nothing fetched."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_WORDS = {"PASS", "FAIL", "ERROR", "SAME", "NEW", "MISSING", "SLOWER", "FASTER", "AMBIGUOUS"}
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --faint: #9aa3ad;
  --line: #d7dce1; --one: #2f6db5; --two: #b26a00; --bad: #b3261e; --good: #1a7f37;
  --raised: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec;
  --faint: #6b747d; --line: #333a41; --one: #74a9e8; --two: #e3a95c; --bad: #f2867d;
  --good: #5cc67c; --raised: #1c2024; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 80rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem;
  border-bottom: 1px solid var(--line); } h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p { margin: .3rem 0; max-width: 46rem; } .facts { color: var(--ink); font-size: .85rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr));
  gap: 0 2rem; align-items: start; }
section { min-width: 0; } .wide { grid-column: 1 / -1; } .wide .scroll { margin-top: .4rem; }
figure { margin: .4rem 0; min-width: 0; }
figure svg { width: 100%; max-width: 36rem; height: auto; display: block; }
.scroll { overflow-x: auto; max-height: 26rem; overflow-y: auto; border: 1px solid var(--line);
  border-radius: 4px; }
table { border-collapse: collapse; font-size: .82rem; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .55rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); } th { position: sticky; top: 0; font-weight: 600;
  background: var(--raised); } td.n, th.n { text-align: right; }
tr:last-child td { border-bottom: 0; } td.long { white-space: normal; min-width: 14rem; }
.PASS, .SAME, .FASTER { color: var(--good); } .FAIL, .ERROR, .SLOWER { color: var(--bad);
  font-weight: 600; } code { font-size: .85em; }
@media (min-width: 76rem) { .wide .pair { align-items: stretch; }
  .wide .pair > .scroll { height: 0; min-height: 100%; max-height: none; } }
@media (max-width: 40rem) { body { padding: .7rem; } h1 { font-size: 1.25rem; } }
@media print { .scroll { max-height: none; } }
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A section: words, an optional drawing, and the table under it.

    wide: it takes the whole width, with the table beside its drawing where there is room.
    """

    title: str
    words: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    svg: str = ""
    level: int = 2
    wide: bool = False


def render(title: str, facts: Sequence[str], parts: Iterable[Part]) -> str:
    """The whole document."""
    found = list(parts)
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f'<p class="facts">{html.escape(fact)}</p>' for fact in facts]
    body += [_section(part) for part in found if not part.svg]
    body += ['<div class="pair">', *(_section(part) for part in found if part.svg), "</div>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _section(part: Part) -> str:
    drawing = f"<figure>{part.svg}</figure>" if part.svg else ""
    heading = f"<h{part.level}>{html.escape(part.title)}</h{part.level}>"
    words = f"<p>{html.escape(part.words)}</p>" if part.words else ""
    shown = drawing + _table(part.header, part.rows)
    if part.wide:
        return f'<section class="wide">{heading}{words}<div class="pair">{shown}</div></section>'
    return f"<section>{heading}{words}{shown}</section>"


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "<p>nothing yet</p>"
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    head = "".join(
        f"<th{_class('n' if n else '')}>{html.escape(h)}</th>"
        for h, n in zip(header, numeric, strict=True)
    )
    lines = [
        "<tr>" + "".join(_cell(v, n) for v, n in zip(row, numeric, strict=True)) + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(value: Any, numeric: bool) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    kind = "n" if numeric else text if text in _WORDS else "long" if len(text) > 60 else ""
    return f"<td{_class(kind)}>{html.escape(text)}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def svg_file(svg: str) -> str:
    """A drawing of the page as a file of its own, in the page's colours."""
    colours = _STYLE[: _STYLE.index("* {")].replace(":root", "svg")
    colours = f"<style>{colours} svg {{ background: var(--paper); }}</style>"
    end = svg.index(">", svg.index("<svg")) + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:end]}{colours}{svg[end:]}\n'
