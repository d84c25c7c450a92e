"""`dsv4-lab model-diff`: a whole model against recorded outputs of another implementation."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lab.cli import settings, text
from lab.cli.exit_codes import ExitCode
from lab.model_diff import SUBJECTS, Check, Report, model_diff
from oracle.laws import LAWS


@click.command("model-diff")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--subject", type=click.Choice(SUBJECTS), default="oracle", help="Which model of ours."
)
@click.option(
    "--against",
    type=click.Choice(["recorded"]),
    default="recorded",
    help="What it must agree with.",
)
@click.option(
    "--law",
    type=click.Choice(list(LAWS)),
    default="smooth",
    help="Which roundings are on: bounds exist for smooth and ref.",
)
def compare(folder: Path, subject: str, against: str, law: str) -> None:
    """Compare a model with the recorded outputs of a folder, layer by layer and step by step.

    DIR holds config.json, weights and golden.safetensors.

    Example: dsv4-lab model-diff tests/data/tiny-s --law smooth
    """
    report = model_diff(folder, subject=subject, law=law)
    if settings.current().json:
        text.emit_json("model-diff", **document(report))
    show(report)
    sys.exit(ExitCode.CONTRACT if report.broken else ExitCode.OK)


def document(report: Report) -> dict[str, Any]:
    """The report as the command's JSON document has it."""
    broken = len(report.broken)
    return {
        "subject": report.subject,
        "law": report.law,
        "checks": [c.to_json() for c in report.checks],
        "tokens": asdict(report.tokens),
        "summary": {"pass": len(report.checks) - broken, "fail": broken},
    }


def show(report: Report) -> None:
    """Print checks, agreement, errors by layer, and what to look at first."""
    text.say(f"{report.folder}  {report.subject} against recorded, law {report.law}\n")
    if report.checks:
        text.say(_table(report.checks))
    if report.told:
        text.say("\nagreement, not judged")
        text.say(_table(report.told))
    if report.layers:
        text.say("\nrelative L2 error of each layer: its input's, its own on recorded input, after")
        header = ("layer", "inherited", "added", "after", "identical %")
        text.say(
            text.table(
                header,
                [
                    (e.layer, e.inherited, e.added, e.after, f"{100 * e.identical:.2f}")
                    for e in report.layers
                ],
            )
        )
    tokens = report.tokens
    text.say(
        f"\ntokens  {tokens.compared} compared, {tokens.agree} agree,"
        f" {tokens.disagree_above_margin} disagree above the margin"
    )
    broken = report.broken
    if broken:
        text.say(_first(report, broken[0]))
    text.say(f"{len(report.checks)} checks, {len(broken)} broken")


def _table(checks: tuple[Check, ...]) -> str:
    header = ("tensor", "n", "max abs", "of", "figure", "bound", "verdict")
    return text.table(
        header,
        [
            (
                c.name,
                c.n,
                c.max_abs,
                c.scale,
                c.rel_max,
                c.bound,
                "" if c.bound is None else text.verdict("PASS" if c.passed else "FAIL"),
            )
            for c in checks
        ],
    )


def _first(report: Report, check: Check) -> str:
    where = "" if check.row is None else f" in row {check.row}"
    return (
        f"first out of bounds: {check.name}{where}, {check.rel_max:.3g} > {check.bound:.3g}\n"
        f"  again  dsv4-lab model-diff {report.folder} --law {report.law}"
    )
