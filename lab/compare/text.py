"""An output's comparison as the lines a person reads under a kernel's headline."""

from __future__ import annotations

from collections.abc import Mapping

from lab.compare.diff import OutputDiff
from lab.compare.location import Location

_INDENT = "  "


def render(diff: OutputDiff, *, show_name: bool = False) -> str:
    """The text block of one output; a failing or odd one shows where, what and how bad.

    The reason of a failure is left to the caller, who has those of all outputs.
    """
    lines = [_summary(diff), _counts(diff), f"bound use {_number(diff.bound_use, '.2f')}"]
    if diff.first is not None and not diff.passed:
        lines.append(f"first   {_location(diff.first)}")
    lines += [f"pattern {sentence}" for sentence in diff.patterns]
    if not diff.passed:
        lines += [f"worst   {line}" for line in _worst(diff)]
    lines += [f"note    {note}" for note in diff.notes]
    head = [f"{diff.name}  {diff.fmt}  contract {diff.contract}"] if show_name else []
    return "\n".join(_INDENT + line for line in [*head, *lines])


def _summary(d: OutputDiff) -> str:
    share = 100.0 * d.identical / d.n if d.n else 100.0
    # Never let rounding call an output identical that is not.
    text = "100 %" if d.identical == d.n else f"{min(share, 99.999):.3f} %"
    unit = "code" if d.fmt in ("e4m3", "e2m1", "e2m1x2", "ue8m0") else "ulp"
    unit += "" if d.ulp_max == 1 else "s"
    real = f" ({d.ulp_real_max:.3f} real)" if d.ulp_real_max else ""
    zeros = f"   zero signs {d.zero_signs}" if d.zero_signs else ""
    return (
        f"identical  {d.identical} / {d.n}  {text}     max {d.ulp_max} {unit}{real}"
        f"   bias {d.bias.mean:+.2f}   rel-l2 {_number(d.rel_l2, '.1e')}{zeros}"
    )


def _counts(d: OutputDiff) -> str:
    filled = [f"{bucket} {n}" for bucket, n in d.ulp_histogram.items() if n]
    got, ref = d.census_got, d.census_ref
    infs = f"{got.plus_inf + got.minus_inf}/{ref.plus_inf + ref.minus_inf}"
    unjudged = f"  not judged {d.unjudged}" if d.unjudged else ""
    return (
        f"ulp   {' | '.join(filled) or '-'}       nan {got.nan}/{ref.nan}  inf {infs}"
        f"  unwritten {d.unwritten}{unjudged}"
    )


def _location(at: Location) -> str:
    block = f"   block ({','.join(map(str, at.block))})" if at.block else ""
    thread = f" thread {at.thread}" if at.thread is not None else ""
    exact = "" if at.ref64 == at.ref or at.ref != at.ref else f" of {at.ref64:.9g}"
    return (
        f"{_where(at.where)}   byte {at.byte}   got {at.got_hex} ({at.got:.9g})"
        f"   ref {at.ref_hex} ({at.ref:.9g}{exact}){block}{thread}"
    )


def _worst(d: OutputDiff) -> list[str]:
    return [
        f"{_where(row.where)}: {row.failing} of {row.size}"
        + ("" if row.use == float("inf") else f", bound use {row.use:.3g}")
        for row in d.worst
        if row.failing
    ]


def _where(where: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={index}" for axis, index in where.items()) or "the one element"


def _number(value: float, spec: str) -> str:
    return "inf" if value == float("inf") else format(value, spec)
