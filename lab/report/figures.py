"""Figures as inline SVG that follow the page's colours, light or dark.

Matplotlib draws with a few marker colours; they are replaced by the page's CSS variables, so one
drawing serves both themes. Series differ in marker, line or hatch too, never by colour alone.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dsv4.errors import DeviceError

# Marker colour -> CSS variable.
_INK, _FAINT, _ONE, _TWO, _BAD = "#010203", "#020304", "#030405", "#040506", "#050607"
_VARIABLES: Final = {
    _INK: "--ink",
    _FAINT: "--faint",
    _ONE: "--one",
    _TWO: "--two",
    _BAD: "--bad",
}
_HATCHES = (
    "",
    "////",
    "\\\\\\\\",
    "xxxx",
    "....",
    "----",
    "++++",
    "oooo",
    "||||",
    "**",
    "OO",
    "--",
)
_SIZE = (4.8, 3.0)
_SMALL, _LABEL = 9, 10  # points; a phone shows a figure at about its own size
_LEGEND_ROW = 0.19  # inches
_MOST_FAMILIES = 11
_MOST_POINTS = 1500
_MOST_CELLS = 40


def figure(height: float = _SIZE[1]) -> tuple[Any, Any]:
    """A figure with one pair of axes in the page's style. Errors: DeviceError (no matplotlib)."""
    try:
        import matplotlib
    except ImportError as error:
        raise DeviceError(
            f"plots need matplotlib, and it cannot be loaded ({error})\n"
            "  install the extra: pip install 'dsv4-lab[report]'"
        ) from None
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.fonttype"] = "none"
    made = Figure(figsize=(_SIZE[0], height), layout="constrained")
    axes = made.add_subplot()
    made.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(which="both", colors=_INK, labelsize=_SMALL)
    axes.grid(True, color=_FAINT, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    return made, axes


def as_svg(made: Any, name: str) -> str:
    """The figure as an SVG element with ids of its own and no outside reference."""
    for text in made.findobj(lambda t: hasattr(t, "set_fontsize") and hasattr(t, "get_text")):
        text.set_color(_INK)
    buffer = io.StringIO()
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}):
        made.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    for marker, variable in _VARIABLES.items():
        svg = svg.replace(marker, f"var({variable})")
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 role="img"', svg, count=1)
    return re.sub(r"font: ([^;\"]*?) '[^\"]*?(?=[;\"])", r"font: \1 system-ui, sans-serif", svg)


def ulp_histogram(shares: Mapping[str, Mapping[str, float]], buckets: Sequence[str]) -> str:
    """Stacked bars: for each kernel the share of elements at each distance."""
    names = list(shares)[::-1]
    made, axes = figure(max(2.2, 0.9 + 0.24 * len(names)))
    left = np.zeros(len(names))
    used = [b for b in buckets if any(shares[n].get(b) for n in names)]
    for number, bucket in enumerate(used):
        widths = np.array([100 * shares[n].get(bucket, 0.0) for n in names])
        bad = bucket in ("sign", "nan", "inf")
        there = np.flatnonzero(widths)
        axes.barh(
            there, widths[there], left=left[there], label=bucket, height=0.7, edgecolor=_INK,
            linewidth=0.4,
            facecolor=_to_rgba(_BAD if bad else _ONE, 0.12 + 0.7 * number / max(1, len(used) - 1)),
            hatch=_HATCHES[number % len(_HATCHES)],
        )  # fmt: skip
        left += widths
    axes.set_yticks(range(len(names)), names, fontsize=_SMALL)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of elements, by distance in ulp", fontsize=_LABEL)
    axes.grid(False, axis="y")
    made.legend(loc="outside upper center", ncols=min(5, max(1, len(used))), fontsize=_SMALL,
                frameon=False)  # fmt: skip
    return as_svg(made, "ulp")


def error_map(
    use: np.ndarray, tile: tuple[int, int], axes_names: tuple[str, str], name: str
) -> tuple[str, list[tuple[str, str, int, float]]]:
    """How far elements use their bound, by row and column, with the tile grid; and its table.

    Shapes: use [rows, columns], 1 is the bound. tile: rows and columns of one block, 0 for all.
    """
    rows, columns = use.shape
    steps = (_cells(rows, tile[0]), _cells(columns, tile[1]))
    made, axes = figure(max(2.4, min(4.5, 1.2 + 0.16 * -(-rows // steps[0]))))
    table: list[tuple[str, str, int, float]] = []
    for y in range(0, rows, steps[0]):
        for x in range(0, columns, steps[1]):
            part = use[y : y + steps[0], x : x + steps[1]]
            worst, bad = float(part.max()), int((part > 1).sum())
            colour = _to_rgba(_BAD, 0.95) if bad else _to_rgba(_ONE, 0.08 + 0.7 * min(worst, 1))
            axes.add_patch(_rectangle(x, y, part.shape[1], part.shape[0], colour, bool(bad)))
            table.append((_span(axes_names[0], y, part.shape[0]),
                          _span(axes_names[1], x, part.shape[1]), bad, worst))  # fmt: skip
    for at in range(tile[0], rows, tile[0]) if 0 < tile[0] and rows / tile[0] <= 64 else ():
        axes.axhline(at, color=_INK, linewidth=0.5, linestyle="--")
    for at in range(tile[1], columns, tile[1]) if 0 < tile[1] and columns / tile[1] <= 64 else ():
        axes.axvline(at, color=_INK, linewidth=0.5, linestyle="--")
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.grid(False)
    axes.set_xlabel(
        f"{axes_names[1]}; crossed: outside the bound, dashed: tiles of a block", fontsize=_LABEL
    )
    axes.set_ylabel(axes_names[0], fontsize=_LABEL)
    table.sort(key=lambda row: (-row[2], -row[3]))
    return as_svg(made, name), table


def signed_ulp(magnitude: np.ndarray, signed: np.ndarray, name: str) -> str:
    """Signed error in spacings against the magnitude of the reference."""
    made, axes = figure()
    kept = np.flatnonzero(np.isfinite(signed) & (magnitude > 0))
    if kept.size > _MOST_POINTS:  # the extremes, and an even choice of the rest
        order = kept[np.argsort(-np.abs(signed[kept]))]
        rest = order[_MOST_POINTS // 5 :]
        kept = np.concatenate([order[: _MOST_POINTS // 5], rest[:: max(1, rest.size // 1200)]])
    axes.scatter(np.log2(magnitude[kept]), signed[kept], s=9, marker="o", linewidths=0.5,
                 facecolors=[_to_rgba(_ONE, 0.35)], edgecolors=[_to_rgba(_ONE, 0.9)])  # fmt: skip
    axes.axhline(0, color=_INK, linewidth=0.8)
    for half in (-0.5, 0.5):
        axes.axhline(half, color=_INK, linewidth=0.6, linestyle=":")
    axes.set_xlabel("log2 of the reference's magnitude; dotted: half a spacing", fontsize=_LABEL)
    axes.set_ylabel("error, spacings", fontsize=_LABEL)
    return as_svg(made, name)


def forward_curve(inherited: Sequence[float], added: Sequence[float], first: int | None) -> str:
    """Inherited and added error along the forward pass, on a logarithmic scale."""
    made, axes = figure(_SIZE[1] + 0.4)
    numbers, floor = np.arange(len(added)), 1e-9
    shown = np.nan_to_num(np.asarray(inherited, float), nan=1.0)
    there = shown > 0  # a weight that is decoded, say, inherits nothing
    axes.plot(numbers[there], np.maximum(shown[there], floor), color=_TWO, linewidth=0.7,
              marker="s", markersize=2.5, markerfacecolor="none", markeredgewidth=0.7,
              label="inherited")  # fmt: skip
    axes.plot(numbers, np.maximum(added, floor), color=_ONE, linewidth=0, marker="o", markersize=3,
              label="added")  # fmt: skip
    if first is not None:
        axes.axvline(first, color=_BAD, linewidth=1.2, linestyle="--", label="first broken")
    axes.set_yscale("log")
    axes.set_xlabel("launch, in the order of the pass", fontsize=_LABEL)
    axes.set_ylabel("relative L2 error", fontsize=_LABEL)
    made.legend(loc="outside upper center", ncols=3, fontsize=_SMALL, frameon=False)
    return as_svg(made, "forward")


def roofline(points: Sequence[tuple[float, float, str]], roof: float | None) -> str:
    """Bytes a second against operations per byte, with the copy speed of the machine."""
    counts = Counter(family for _, _, family in points)
    families = sorted(family for family, _ in counts.most_common(_MOST_FAMILIES))
    others = sorted(counts.keys() - set(families))
    groups = [(f"{len(others)} others", set(others))] if others else []
    groups += [(family, {family}) for family in families]
    made, axes = figure(_SIZE[1] + _LEGEND_ROW * -(-(len(groups) + 1) // 3))
    for number, (name, members) in enumerate(groups):
        mine = [(x, y) for x, y, f in points if f in members]
        axes.scatter([x for x, _ in mine], [y / 1e9 for _, y in mine], s=22,
                     marker=".os^vDPX*<>h"[number + (not others)], linewidths=0.7, label=name,
                     facecolors=[_to_rgba(_ONE if number % 2 else _TWO, 0.45)],
                     edgecolors=[_INK])  # fmt: skip
    if roof:
        axes.axhline(roof / 1e9, color=_INK, linewidth=1.0, linestyle="--", label="copy")
    # Kernels without arithmetic stand at zero, which a logarithm has no place for.
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=-0.03)
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte", fontsize=_LABEL)
    axes.set_ylabel("GB/s", fontsize=_LABEL)
    made.legend(loc="outside upper center", ncols=3, fontsize=_SMALL, frameon=False)
    return as_svg(made, "roofline")


def time_history(series: Mapping[str, Sequence[tuple[int, float, float]]]) -> str:
    """Median time of a case over its records, relative to its first; the bars are the noise."""
    made, axes = figure(_SIZE[1] + _LEGEND_ROW * len(series))
    for number, (name, rows) in enumerate(series.items()):
        begin = rows[0][1] or 1.0
        axes.errorbar(
            [r for r, _, _ in rows], [t / begin for _, t, _ in rows],
            yerr=[t / begin * noise for _, t, noise in rows], label=name,
            color=_ONE if number % 2 else _TWO, marker="os^vDPX*<>hp"[number % 12], markersize=4,
            linewidth=1.0, linestyle=("-", "--", ":", "-.")[number % 4], capsize=2,
        )  # fmt: skip
    axes.set_xlabel("record", fontsize=_LABEL)
    axes.set_ylabel("time, first = 1", fontsize=_LABEL)
    axes.locator_params(axis="x", integer=True)
    made.legend(loc="outside upper center", ncols=1, fontsize=_SMALL, frameon=False)
    return as_svg(made, "history")


def reliability(bins: Sequence[tuple[float, float, int, float, float]]) -> str:
    """The accepted share of drafts over their confidence; on the diagonal it means what it says.

    bins: (from, to, drafts, mean confidence, share accepted) each; empty ones are left out.
    """
    made, axes = figure(_SIZE[1] + 0.6)
    used = [b for b in bins if b[2]]
    axes.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle="--", label="as said")
    axes.bar([b[0] for b in used], [b[4] for b in used], width=[b[1] - b[0] for b in used],
             align="edge", facecolor=_to_rgba(_ONE, 0.35), edgecolor=_INK, linewidth=0.6,
             label="accepted")  # fmt: skip
    axes.plot([b[3] for b in used], [b[4] for b in used], color=_TWO, linewidth=0, marker="o",
              markersize=4, label="at its mean confidence")  # fmt: skip
    for low, high, count, _, share in used:
        axes.annotate(str(count), ((low + high) / 2, share), (0, 5), textcoords="offset points",
                      ha="center", fontsize=_SMALL - 2)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.08)
    axes.grid(False, axis="x")
    axes.set_xlabel("confidence; numbers: drafts in the bin", fontsize=_LABEL)
    axes.set_ylabel("share accepted", fontsize=_LABEL)
    made.legend(loc="outside upper center", ncols=3, fontsize=_SMALL, frameon=False)
    return as_svg(made, "reliability")


def _to_rgba(colour: str, alpha: float) -> tuple[float, float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue, alpha


def _rectangle(x: float, y: float, width: float, height: float, colour: Any, bad: bool) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor=_INK if bad else colour,
                     linewidth=0.6 if bad else 0.0, hatch="xxx" if bad else "")  # fmt: skip


def _cells(size: int, tile: int) -> int:
    """Elements along one side of a cell: whole fractions or multiples of the tile."""
    step = 1
    while size > step * _MOST_CELLS:
        step *= 2
    if tile <= 0 or tile >= size:
        return step
    if step <= tile:
        return next(d for d in range(step, tile + 1) if tile % d == 0)
    return -(-step // tile) * tile


def _span(axis: str, start: int, count: int) -> str:
    return f"{axis}={start}" if count == 1 else f"{axis} {start}..{start + count - 1}"
