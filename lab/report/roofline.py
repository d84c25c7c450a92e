"""The roofline picture: achieved bytes a second over bytes a launch must move, as one SVG.

No script, no font of its own, colours for light and dark pages, and told apart without colour: cold
points are filled, warm ones hollow.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH, _HEIGHT = 880, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 24, 64
_LETTER = 6.2  # width of a letter of the small text
_Box = tuple[float, float, float, float]
_STYLE: Final = """
  .ink { fill: #1f2328; } .line { stroke: #1f2328; } .grid { stroke: #d1d9e0; }
  .roof { stroke: #0550ae; } .copy { stroke: #6e7781; } .point { stroke: #9a3412; }
  .cold { fill: #c2410c; } .warm { fill: none; }
  @media (prefers-color-scheme: dark) {
    .ink { fill: #e6edf3; } .line { stroke: #e6edf3; } .grid { stroke: #3d444d; }
    .roof { stroke: #79c0ff; } .copy { stroke: #9198a1; } .point { stroke: #ffa657; }
    .cold { fill: #ffa657; }
  }
  text { font: 13px system-ui, sans-serif; } .small { font-size: 11px; }
""".strip("\n")


@dataclass(frozen=True, slots=True)
class Point:
    """One timed thing. label: told when a pointer rests on it; short: written beside it, or ""."""

    label: str
    size_bytes: int
    time_s: float
    cold: bool
    short: str = ""


def roofline(points: Sequence[Point], *, read: float, copy: float, launch_s: float) -> str:
    """The picture. read, copy: bytes a second; launch_s: what a launch costs that does nothing.

    No point can lie above the lower of the roof of reading and bytes over the shortest launch.
    """
    sizes = [p.size_bytes for p in points] or [1 << 20]
    low_x, high_x = _decades([*sizes, read * launch_s])
    rates = [p.size_bytes / p.time_s for p in points] or [read]
    low_y, high_y = _decades([*rates, read])

    def x(size_bytes: float) -> float:
        share = (math.log10(size_bytes) - low_x) / (high_x - low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        share = (math.log10(rate) - low_y) / (high_y - low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        ' aria-labelledby="title">',
        '<title id="title">Achieved bytes a second over the bytes of a launch</title>',
        f"<style>\n{_STYLE}\n</style>",
    ]
    for exponent in range(low_x, high_x + 1):
        at = x(10.0**exponent)
        parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM, "grid"))
        parts.append(_text(at, _HEIGHT - _BOTTOM + 20, _scaled(10.0**exponent, "B"), "middle"))
    for exponent in range(low_y, high_y + 1):
        at = y(10.0**exponent)
        parts.append(_line(_LEFT, at, _WIDTH - _RIGHT, at, "grid"))
        parts.append(_text(_LEFT - 8, at + 4, _scaled(10.0**exponent, "B/s"), "end"))
    knee = read * launch_s
    bottom = max(10.0**low_x, 10.0**low_y * launch_s)
    parts.append(_line(x(bottom), y(bottom / launch_s), x(knee), y(read), "roof", 2))
    parts.append(_line(x(knee), y(read), _WIDTH - _RIGHT, y(read), "roof", 2))
    parts.append(_line(x(knee), y(copy), _WIDTH - _RIGHT, y(copy), "copy", 1, "6 4"))
    roofs = f"read {_scaled(read, 'B/s')}, dashed: copy {_scaled(copy, 'B/s')}"
    parts.append(_text(_WIDTH - _RIGHT, y(read) - 8, roofs, "end"))
    slope = f"slope: the shortest launch, {_scaled(launch_s, 's')}"
    parts.append(_text(_LEFT + 8, _TOP + 16, slope, "start"))
    taken = [_box(x(p.size_bytes) - 4, y(p.size_bytes / p.time_s), 8) for p in points]
    # Where the roofs are told.
    taken.append(_box(_WIDTH - _RIGHT - 7.5 * len(roofs), y(read) - 12, 7.5 * len(roofs)))
    for point in points:
        cx, cy = x(point.size_bytes), y(point.size_bytes / point.time_s)
        kind = "cold" if point.cold else "warm"
        parts.append(
            f'<circle class="point {kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="4" stroke-width="1.5">'
            f"<title>{html.escape(point.label)}</title></circle>"
        )
    for point in points:
        cx, cy = x(point.size_bytes), y(point.size_bytes / point.time_s)
        if point.short and (place := _free_place(cx, cy, point.short, taken)) is not None:
            parts.append(_text(*place, point.short, "start", "small"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    what = "bytes a launch must move; filled: from memory, hollow: from the cache"
    parts.append(_text(middle, _HEIGHT - 16, what, "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _free_place(cx: float, cy: float, said: str, taken: list[_Box]) -> tuple[float, float] | None:
    """Where a name fits beside its point without covering another; None where it does not."""
    width = _LETTER * len(said)
    for left, base in ((cx + 7, cy + 4), (cx - 7 - width, cy + 4), (cx + 5, cy - 7), (cx, cy + 15)):
        box = _box(left, base - 4, width)
        inside = _LEFT < box[0] and box[2] < _WIDTH - _RIGHT and box[3] < _HEIGHT - _BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return left, base
    return None


def _box(left: float, middle: float, width: float) -> _Box:
    return left, middle - 5, left + width, middle + 5


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The whole powers of ten around the values; at least one decade."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _line(
    x1: float, y1: float, x2: float, y2: float, kind: str, width: float = 1, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f' stroke-width="{width:g}"{dashed}/>'
    )


def _text(x: float, y: float, said: str, anchor: str, more: str = "") -> str:
    kind = f"ink {more}".strip()
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{html.escape(said)}</text>"
    )


def _scaled(value: float, unit: str) -> str:
    prefixes = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    step = max(-9, min(15, 3 * math.floor(math.log10(value) / 3 + 1e-9)))
    return f"{value / 10.0**step:.3g} {prefixes[step]}{unit}"
