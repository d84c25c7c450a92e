"""The generated tables of the README: kernels from kernel-diff documents, models from their runs.

`docs/measured/<card>.json` is what `dsv4-lab kernel-diff --level full --json` printed on that card.
`python -m lab.report.readme` writes the tables between the markers; `--check` only compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dsv4 import registry
from dsv4.errors import Refusal
from lab.report import runs
from lab.report.markdown import card, markdown, replace_between

KERNELS = "<!-- kernels:begin -->", "<!-- kernels:end -->"
RUNS = "<!-- runs:begin -->", "<!-- runs:end -->"
_ROOT = Path(__file__).resolve().parents[2]
_README = _ROOT / "README.md"
_MEASURED = _ROOT / "docs" / "measured"
# Smaller products live in the L2 cache, and their bandwidth says nothing about memory.
_LINEAR_BYTES = 4 << 20

Result = Mapping[str, Any]


def tables(documents: Sequence[Mapping[str, Any]]) -> str:
    """The generated part of the README: for each card a summary, all kernels, all linears."""
    if not documents:
        return "No measurement of a card is committed yet; kernels and contracts:\n\n" + _declared()
    return "\n\n".join(_card(d) for d in documents)


def replaced(text: str, kernels: str, models: str) -> str:
    """The README with both generated parts in place. Errors: Refusal without their markers."""
    for (begin, end), generated in ((KERNELS, kernels), (RUNS, models)):
        filled = replace_between(text, begin, end, generated)
        if filled is None:
            raise Refusal(
                f"README.md lacks the markers {begin} and {end}\n"
                "  put them where the generated table belongs"
            )
        text = filled
    return text


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """The committed documents, by file name. Errors: Refusal for what is no such document."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Refusal(f"{path.name} is not JSON ({error})\n  make it anew: {_HOW}") from None
        if document.get("command") != "kernel-diff" or not document.get("results"):
            raise Refusal(f"{path.name} is no kernel-diff document\n  make it anew: {_HOW}")
        found.append(document)
    return found


_HOW = "dsv4-lab kernel-diff --level full --json"


def _card(document: Mapping[str, Any]) -> str:
    results: list[Result] = document["results"]
    return "\n\n".join(
        part for part in (_summary(document), _all_kernels(results), _linears(results)) if part
    )


def _summary(document: Mapping[str, Any]) -> str:
    env, summary = document["env"], document["summary"]
    joined = document.get("runs", 1)
    more = f"{joined} runs joined, not of one commit" if joined > 1 else ""
    worst = max(document["results"], key=_bound_use)
    return (
        f"{card(env, more)}:"
        f" {summary['kernels']} kernels, {summary['cases']} cases, {summary['pass']} pass,"
        f" {summary['fail']} fail, {summary['error']} error. Worst bound use"
        f" {_bound_use(worst):.2f} ({worst['kernel']}, {worst['case']})."
    )


def _all_kernels(results: Sequence[Result]) -> str:
    rows = []
    for kernel in dict.fromkeys(r["kernel"] for r in results):
        mine = [r for r in results if r["kernel"] == kernel]
        largest = max(mine, key=lambda r: (r.get("time_s") is not None, r.get("bytes") or 0))
        verdicts = {r["verdict"] for r in mine}
        verdict = "PASS" if verdicts == {"PASS"} else min(verdicts - {"PASS"})
        contracts = dict.fromkeys(_short(o["contract"]) for r in mine for o in r["outputs"])
        rows.append(
            (
                f"`{kernel}`",
                "; ".join(contracts),
                verdict,
                _share(mine),
                f"{max(map(_bound_use, mine)):.2f}",
                _axes(largest),
                *_speed(largest),
            )
        )
    header = ("kernel", "contract", "verdict", "identical", "bound use", "timed at")
    return markdown((*header, "time", "GB/s", "of copy"), rows)


def _linears(results: Sequence[Result]) -> str:
    timed = [
        r
        for r in results
        if r["kernel"].startswith("linear_")
        and r.get("time_s")
        and (r.get("bytes") or 0) >= _LINEAR_BYTES
    ]
    if not timed:
        return ""
    rows = [(f"`{r['kernel']}`", r["case"], _axes(r), *_speed(r)) for r in timed]
    return markdown(("linear", "case", "shape", "time", "GB/s", "of copy"), rows)


def _declared() -> str:
    from lab.compare.judge import label

    rows = [
        (
            f"`{k.spec.name}`",
            "; ".join(dict.fromkeys(_short(label(c)) for c in k.spec.contract.values())),
            k.spec.summary,
        )
        for k in registry.kernels().values()
    ]
    return markdown(("kernel", "contract", "what it does"), rows)


def _bound_use(result: Result) -> float:
    return max((float(o.get("bound_use") or 0.0) for o in result["outputs"]), default=0.0)


def _share(results: Sequence[Result]) -> str:
    outputs = [o for r in results for o in r["outputs"]]
    total, same = (sum(o[k] for o in outputs) for k in ("n", "identical"))
    if not total:
        return "-"
    # Rounding must never call bytes identical that are not.
    return "100 %" if same == total else f"{min(100 * same / total, 99.999):.3f} %"


def _speed(result: Result) -> tuple[str, str, str]:
    time_s = result.get("time_s")
    if not time_s:
        return ("-", "-", "-")
    fraction = result.get("bandwidth_fraction")
    share = f"{100 * fraction:.0f} %" if fraction else "-"
    return (f"{1e6 * time_s:.1f} us", f"{result['bytes'] / time_s / 1e9:.0f}", share)


def _axes(result: Result) -> str:
    return " ".join(f"{k}={v}" for k, v in result["axes"].items())


def _short(contract: str) -> str:
    """Long formulas stay in the declaration; a table names their kind."""
    return contract if len(contract) <= 12 else contract.partition("(")[0]


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the README is up to date.")
def main(check: bool) -> None:
    """Write the generated tables of the README from docs/measured.

    Example: python -m lab.report.readme --check
    """
    try:
        old = _README.read_text(encoding="utf-8")
        new = replaced(
            old, tables(read_documents(_MEASURED)), runs.tables(runs.read_runs(_MEASURED / "runs"))
        )
    except Refusal as error:
        raise click.ClickException(str(error)) from None
    if old == new:
        return
    if check:
        click.echo("the kernel table of README.md is out of date; run: make report", err=True)
        sys.exit(1)
    _README.write_text(new, encoding="utf-8")
    click.echo("README.md written")


if __name__ == "__main__":
    main()
