"""The loss picture: one vector image, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 380, 64, 20, 44, 48
_STROKES: Final = (("#1f6feb", ""), ("#bc4c00", "7 4"), ("#1a7f37", "2 3"), ("#8250df", "9 3 2 3"))


def picture(title: str, lines: Mapping[str, Points], *, x_name: str, y_name: str) -> str:
    """An SVG of lines over one pair of axes; each has its own colour, dashes and name.

    Errors: ValueError when no line has a point.
    """
    points = [p for line in lines.values() for p in line]
    if not points:
        raise ValueError("a picture of no points was asked for; log a step first")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x = min(xs), max(max(xs), min(xs) + 1e-9)
    low_y, high_y = min(ys), max(max(ys), min(ys) + 1e-9)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + width * (x - low_x) / (high_x - low_x)
        return across, _TOP + height * (high_y - y) / (high_y - low_y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for n in range(6):
        x, y = low_x + (high_x - low_x) * n / 5, low_y + (high_y - low_y) * n / 5
        across, _ = place(x, low_y)
        _, down = place(low_x, y)
        parts += [
            f'<path d="M{_LEFT} {down:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>',
            f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{y:.3g}</text>',
            f'<text x="{across:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{x:.4g}</text>',
        ]
    parts += [
        f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"{escape(x_name)}</text>",
        f'<text x="14" y="{_TOP - 8}">{escape(y_name)}</text>',
    ]
    for n, (name, line) in enumerate(lines.items()):
        colour, dashes = _STROKES[n % len(_STROKES)]
        path = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in line)
        style = f'stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dashes}" fill="none"'
        down = 36 + 16 * n
        parts += [
            f'<path d="M{path}" {style}/>' if line else "",
            f'<path d="M{_WIDTH - 200} {down - 4}h28" {style}/>',
            f'<text x="{_WIDTH - 166}" y="{down}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
