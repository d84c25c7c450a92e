"""How `bench` tells people what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.bench.measured import Measured, Pair
from lab.bench.roofs import Roofs
from lab.bench.sampling import HOW_CUDA, HOW_HOST
from lab.cli import text

_HEADER = ("", "case", "arm", "time", "+-%", "bytes", "GB/s", "% of roof", "us of floor", "cache",
           "contract")  # fmt: skip


def opening(roofs: Roofs | None, how: str = "") -> str:
    """What is timed how, and against what."""
    if roofs is None:
        return f"timed by {how or HOW_HOST}"
    launch = text.scaled(roofs.launch_s, "s")
    return (
        f"timed by {how or HOW_CUDA}\n"
        f"roofs  read {text.scaled(roofs.read, 'B/s')} ({roofs.grid}),"
        f" copy {text.scaled(roofs.copy, 'B/s')}, shortest launch {launch}"
    )


def table(found: Sequence[Measured]) -> str:
    """A line for each thing timed."""
    return text.table(_HEADER, [_row(m) for m in found])


def more_of(measured: Measured) -> str:
    """What a layer, a step or a round has to say beside its time; "" for a kernel's case."""
    if measured.timing is None or measured.facts["family"] != "bench":
        return ""
    facts, spent = measured.more, measured.timing.median_s
    said = [measured.name + (f" ({words(measured.arm)})" if measured.arm else "")]
    if facts.get("floor_bytes"):
        said.append(f"{facts['launches']:.4g} launches")
        said.append(f"no less than {text.scaled(facts['floor_bytes'], 'B')} of weights")
        if measured.roof:
            share = facts["floor_bytes"] / measured.roof / spent
            said.append(f"{100 * share:.0f} % of the time is their floor")
    if measured.facts["kernel"] == "step":
        said.append(f"{facts['rows'] / spent:.1f} rows/s")
    if facts.get("tokens_per_round"):
        said.append(f"{facts['tokens_per_round']:.2f} tokens a round")
        said.append(f"{facts['tokens_per_s']:.1f} tokens/s")
        said.append(f"a plain step {text.scaled(facts['plain_step_s'], 's')}")
    lines = [": ".join([said[0], ", ".join(said[1:])])]
    return "\n".join([*lines, *filter(None, [breakdown(measured)])])


def breakdown(measured: Measured) -> str:
    """The kernels of a step, the most expensive first; empty where there are none."""
    kernels: Sequence[Any] = measured.more.get("kernels") or ()
    if not kernels:
        return ""
    rows = [
        (
            k["kernel"],
            k["launches"],
            k["size_bytes"],
            1e6 * k["graph_s"],
            1e6 * k["graph_s"] / k["launches"],
            k["size_bytes"] / k["graph_s"] / 1e9,
        )
        for k in kernels
    ]
    header = ("kernel", "launches", "bytes", "us in a graph", "us a launch", "GB/s")
    return text.table(header, rows)


def pairs(found: Sequence[Pair]) -> str:
    """A line for each comparison of arm B with arm A."""
    rows = [
        (
            p.name,
            p.rival or words(p.a) or "-",
            "ours" if p.rival else words(p.b) or "-",
            text.scaled(p.a_s, "s"),
            text.scaled(p.b_s, "s"),
            None if p.ratio is None else f"{p.ratio:.3f}",
            text.verdict(p.time or "-"),
            {True: "same bytes", False: "other bytes", None: ""}[p.same_bytes],
        )
        for p in found
    ]
    header = ("", "A", "B", "A time", "B time", "B/A", "time", "result")
    lines = [text.table(header, rows)]
    lines += [f"  {p.name}: {p.why}" for p in found if p.why]
    return "\n".join(lines)


def words(arm: Any) -> str:
    """An arm as it was given."""
    return " ".join(f"{k}={v}" for k, v in arm.items())


def _row(m: Measured) -> tuple[object, ...]:
    timing = m.timing
    axes = " ".join(f"{k}={v}" for k, v in (m.facts.get("axes") or {}).items())
    rate = m.size_bytes / timing.median_s / 1e9 if timing and m.size_bytes else None
    floor_us = 1e6 * m.size_bytes / m.roof if m.roof and m.size_bytes else None
    return (
        m.facts["kernel"],
        f"{m.facts['case']} {axes}".rstrip(),
        words(m.arm),
        text.scaled(timing.median_s if timing else None, "s"),
        None if timing is None else f"{100 * timing.noise:.1f}",
        m.size_bytes or None,
        rate,
        None if m.fraction is None else f"{100 * m.fraction:.0f}",
        floor_us,
        None if timing is None else "cold" if timing.cold else "warm",
        text.verdict(m.verdict),
    )
