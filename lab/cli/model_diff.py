"""`dsv4-lab model-diff`: a whole model against recorded outputs of another implementation."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dsv4.runtime.device import open_device
from lab.cli import settings, text
from lab.cli.arms import ARMS, switches
from lab.cli.exit_codes import ExitCode
from lab.drafter_diff import drafter_diff
from lab.drafter_recorded import kind_of
from lab.engine_diff import PART_BOUND, engine_against_oracle
from lab.model_diff import AGAINST, SUBJECTS, Check, Report, model_diff
from oracle.laws import LAWS


@click.command("model-diff")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--subject", type=click.Choice(SUBJECTS), default="oracle", help="Which model of ours."
)
@click.option(
    "--against",
    type=click.Choice(AGAINST),
    default="recorded",
    help="What it must agree with: recorded outputs, or for the engine the float64 model on the"
    " engine's own inputs.",
)
@click.option(
    "--law",
    type=click.Choice(list(LAWS)),
    help="Which roundings are on: bounds exist for smooth and ref, and for the engine against the"
    " float64 model.  [default: smooth against recorded outputs, engine against the float64 model]",
)
@click.option(
    "--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
    help="Where the engine runs.",
)  # fmt: skip
@ARMS
@click.option(
    "--tokens", type=click.IntRange(1), default=48, show_default=True, metavar="N",
    help="Rows against the float64 model where no ids are recorded.",
)  # fmt: skip
def compare(
    folder: Path,
    subject: str,
    against: str,
    law: str | None,
    backend: str,
    arms: tuple[str, ...],
    tokens: int,
) -> None:
    """Compare a model with the recorded outputs of a folder, layer by layer and step by step.

    DIR holds config.json, weights and golden.safetensors; against the float64 model any
    checkpoint will do. Recorded drafters, their targets and runs of both are compared too: float64
    within 1e-9, the engine within four times the recorded float32 run's distance, integers exactly.

    \b
    Example:
      dsv4-lab model-diff tests/data/tiny-s --law smooth
      dsv4-lab model-diff tests/data/tiny-s --subject engine --against oracle
    """
    if against == "oracle":
        if subject != "engine":
            raise click.UsageError("--against oracle is for --subject engine")
        _against_oracle(folder, law or "engine", backend, arms, tokens)
        return
    if kind_of(folder) is not None:
        report = _of_drafters(folder, subject, law, backend, arms)
    else:
        report = model_diff(
            folder, subject=subject, law=law or "smooth", backend=backend, switches=switches(arms)
        )
    if settings.current().json:
        text.emit_json("model-diff", **document(report))
    show(report)
    sys.exit(ExitCode.CONTRACT if report.broken else ExitCode.OK)


def _against_oracle(
    folder: Path, law: str, backend: str, arms: tuple[str, ...], tokens: int
) -> None:
    parts = engine_against_oracle(
        folder, law=law, backend=backend, switches=switches(arms), tokens=tokens
    )
    broken = [p for p in parts if not p.passed]
    if settings.current().json:
        text.emit_json(
            "model-diff", subject="engine", against="oracle", law=law,
            parts=[{**asdict(p), "pass": p.passed} for p in parts],
            summary={"pass": len(parts) - len(broken), "fail": len(broken)},
        )  # fmt: skip
    text.say(f"{folder}  engine against the float64 model on the engine's inputs, law {law}\n")
    header = ("part", "rows", "median row", "largest row", "at", "rows the same %", "verdict")
    rows = [
        (p.name, p.rows, p.median, p.largest, p.worst_row, f"{100 * p.same_rows:.0f}",
         text.verdict("PASS" if p.passed else "FAIL"))
        for p in parts
    ]  # fmt: skip
    text.say(text.table(header, rows))
    text.say(f"\n{len(parts)} parts, {len(broken)} with a median row above {PART_BOUND:g}")
    sys.exit(ExitCode.CONTRACT if broken else ExitCode.OK)


def _of_drafters(
    folder: Path, subject: str, law: str | None, backend: str, arms: tuple[str, ...]
) -> Report:
    """Folders of drafters and their targets: one arithmetic each, no laws and no arms."""
    if law is not None or arms:
        raise click.UsageError(f"{folder} records a drafter or its target: no --law, no --arm")
    device = open_device(backend) if subject == "engine" else None
    return drafter_diff(folder, subject=subject, device=device)


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
