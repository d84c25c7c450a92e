"""One pending golden as the lines a person decides on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.compare.ulp import BUCKETS
from lab.record.golden_files import Row, label_of

_BAR = 24


def page(row: Row, before: Row | None, number: int, count: int) -> str:
    """One pending change with its histogram before and after."""
    place = f"{row['arch']} {row['compiler']}"
    lines = [f"{number}/{count}  {row['kernel']}  {label_of(row)}  {place}"]
    lines.append(f"  verdict  {before['verdict'] if before else '-'} -> {row['verdict']}")
    for name, now in row["outputs"].items():
        old = (before or {"outputs": {}})["outputs"].get(name)
        lines.append(f"  {name}")
        for metric in ("identical", "ulp_max", "ulp_real_max", "bias", "rel_l2", "bound_use"):
            lines.append(f"    {metric:<14} {_cell(old, metric):>14} {_cell(now, metric):>14}")
        lines += _histograms(old, now)
    return "\n".join(lines)


def _histograms(old: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Counts by distance, before and after, as bars of the share of elements."""
    lines = [f"    {'ulp':>9}  {'before':<{_BAR + 10}} after"]
    for bucket in BUCKETS:
        counts = [(o or {}).get("ulp_histogram", {}).get(bucket, 0) for o in (old, now)]
        if any(counts):
            cells = [_bar(n, (o or {}).get("n") or 1) for n, o in zip(counts, (old, now),
                                                                      strict=True)]  # fmt: skip
            lines.append(f"    {bucket:>9}  {cells[0]:<{_BAR + 10}} {cells[1]}")
    return lines


def _bar(count: int, total: int) -> str:
    return f"{count:>8} " + "#" * (max(1, round(_BAR * count / total)) if count else 0)


def _cell(output: Mapping[str, Any] | None, metric: str) -> str:
    value = (output or {}).get(metric)
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
