"""One result of kernel-diff as the lines a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from lab.cli.text import scaled, verdict
from lab.compare.text import render as render_output
from lab.result import PASS, CaseResult
from lab.session import Tally

_WIDTH = 100


def one_line(result: CaseResult) -> str:
    """A passing case on one line: name, axes, worst use of the bound, time, verdict."""
    left = f"{result.kernel:<22} {_axes(result):<44}"
    use = max((o.bound_use for o in result.outputs), default=0.0)
    same = sum(o.identical for o in result.outputs)
    total = sum(o.n for o in result.outputs)
    share = "100 %" if same == total else f"{min(100 * same / total, 99.99):.2f} %"
    return f"{left} same {share:>7}  use {use:4.2f}  {_time(result):<28} {verdict(result.verdict)}"


def block(result: CaseResult, *, replay: Path | None = None) -> str:
    """A case in full: contract, metrics per output, proofs, time, and how to see it again."""
    several = len(result.outputs) != 1
    contract = "" if several else f"contract {result.outputs[0].contract}"
    lines = [f"{result.kernel:<18} {_axes(result):<44} {contract}".rstrip()]
    for output in result.outputs:
        lines.append(render_output(output, show_name=several))
    if result.outputs:
        lines.append(f"  {_proofs(result)}")
    lines += [f"  why     {reason}" for reason in result.reasons]
    if result.error:
        lines += [f"  {line}" for line in f"{result.error_class}: {result.error}".splitlines()]
    for output in result.what_if:
        word = "would pass" if output.passed else "would fail"
        lines.append(
            f"  what if {output.name}: {output.contract} {word}, use {output.bound_use:.3g}"
        )
    if replay is not None:
        lines.append(f"  replay  dsv4-lab replay {replay}")
    lines.append(f"  {_time(result)}".ljust(_WIDTH) + verdict(result.verdict))
    return "\n".join(lines)


def closing(result_tally: Tally, *, seconds: float, run_id: int | None, exit_code: int) -> str:
    """The last line: what ran, what broke, where it is kept."""
    t = result_tally
    parts = [_count(t.kernels, "kernel"), _count(t.cases, "case")]
    parts += [f"{t.passed} pass", f"{t.failed} fail"]
    if t.errors:
        parts.append(f"{t.errors} error")
    record = f", record {run_id:04d}" if run_id is not None else ""
    text = f"{', '.join(parts)}  ({seconds:.1f} s{record})"
    if exit_code:
        text += f"  exit {exit_code}"
    return click.style(text, fg=None if t.passed == t.cases and t.cases else "red")


def worst_uses(results: Sequence[CaseResult], top: int) -> list[tuple[str, float]]:
    """The passing cases closest to their bound, for `-v`."""
    uses = [
        (f"{r.kernel} {r.label}", max((o.bound_use for o in r.outputs), default=0.0))
        for r in results
        if r.verdict == PASS
    ]
    return sorted(uses, key=lambda pair: -pair[1])[:top]


def _axes(result: CaseResult) -> str:
    return " ".join([result.case, *(f"{k}={v}" for k, v in result.axes.items())])


def _proofs(result: CaseResult) -> str:
    guards = "ok" if result.guards_ok else "DAMAGED"
    inputs = "ok" if result.inputs_ok else "CHANGED"
    same = result.relaunches if result.relaunch_identical else "differ,"
    rows = {None: "", True: "  batch rows ok", False: "  batch rows DIFFER"}
    batch = rows[result.batch_identical]
    return f"guards {guards}  inputs {inputs}  relaunch {same}/{result.relaunches}{batch}"


def _time(result: CaseResult) -> str:
    if result.timing is None or result.bandwidth is None:
        return ""
    kind = "cold" if result.timing.cold else "warm"
    share = f"  {result.bandwidth / result.roof:.0%} of copy" if result.roof else ""
    return (
        f"{scaled(result.timing.median_s, 's')} {kind}"
        f" (n={len(result.timing.samples_s)}, +-{100 * result.timing.noise:.1f} %)"
        f"  {scaled(result.bandwidth, 'B/s')}{share}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
