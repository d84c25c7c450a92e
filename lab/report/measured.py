"""Shortens kernel-diff documents of one card to what the committed tables need.

`python -m lab.report.measured results.json ... docs/measured/h200.json` keeps verdicts, bounds,
times and digests of every case and drops histograms and locations, so that a reviewed file stays
small. Of a case that several documents hold, the last one counts; a case that is declared no more
is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dsv4 import registry
from dsv4.errors import Refusal
from lab.cases import cases

_ENV = ("backend", "device", "arch", "python", "numpy", "cuda", "gpu_settings", "git", "cpu")
_RESULT = (
    "kernel", "family", "case", "axes", "backend", "mode", "arch", "seed", "verdict", "guards_ok",
    "inputs_ok", "relaunch_identical", "relaunches", "batch_identical", "time_s", "time_noise",
    "time_cold", "bytes", "flops", "bandwidth_fraction", "output_digest",
)  # fmt: skip
_OUTPUT = (
    "name", "format", "contract", "pass", "n", "identical", "ulp_max", "ulp_real_max", "bias",
    "rel_l2", "bound_use", "unwritten",
)  # fmt: skip


def shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document with the fields that tables and comparisons read."""
    return {
        "schema": document["schema"],
        "command": document["command"],
        "runs": document["runs"],
        "env": {k: document["env"].get(k) for k in _ENV},
        "summary": document["summary"],
        "results": [
            {
                **{k: _rounded(r.get(k)) for k in _RESULT},
                "outputs": [{k: _rounded(o.get(k)) for k in _OUTPUT} for o in r["outputs"]],
            }
            for r in document["results"]
        ],
    }


def _rounded(value: Any) -> Any:
    """Six significant digits: more are noise in a time and unread in a bound."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One document of several runs on the same card, kernels in alphabetical order of families.

    Errors: Refusal when the runs are of different cards, drivers or compilers.
    """
    cards = {
        (d["env"]["device"], d["env"]["gpu_settings"]["driver"], d["env"]["cuda"]["nvrtc"])
        for d in documents
    }
    if len(cards) > 1:
        raise Refusal(
            f"the documents are of different machines: {sorted(cards)}\n"
            "  join the runs of one card, driver and NVRTC"
        )
    results = {
        (r["family"], r["kernel"], r["case"], json.dumps(r["axes"])): r
        for d in documents
        for r in d["results"]
    }
    declared = {
        (name, case.name, json.dumps(dict(case.axes), sort_keys=True))
        for name in registry.kernels()
        for case in cases(name)
    }
    results = {
        key: r
        for key, r in results.items()
        if (r["kernel"], r["case"], json.dumps(r["axes"], sort_keys=True)) in declared
    }
    families = dict.fromkeys(sorted(r["family"] for r in results.values()))
    kept = [r for f in families for r in results.values() if r["family"] == f]
    verdicts = Counter(r["verdict"] for r in kept)
    summary = {
        "kernels": len({r["kernel"] for r in kept}),
        "cases": len(kept),
        **{word.lower(): verdicts[word] for word in ("PASS", "FAIL", "ERROR")},
    }
    runs = sum(d.get("runs", 1) for d in documents)
    return {**documents[-1], "runs": runs, "summary": summary, "results": kept}


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(sources: tuple[Path, ...], target: Path) -> None:
    """Join and shorten SOURCES, kernel-diff --json documents, into TARGET, one line a result.

    Example: python -m lab.report.measured results.json docs/measured/h200.json
    """
    try:
        documents = [json.loads(s.read_text(encoding="utf-8")) for s in sources]
        document = shortened(joined(documents))
    except (OSError, ValueError, KeyError, Refusal) as error:
        raise click.ClickException(f"the documents cannot be joined: {error}") from None
    results = document.pop("results")
    head = json.dumps(document, indent=1).rstrip("}").rstrip()
    lines = ",\n".join(json.dumps(r) for r in results)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'{head},\n "results": [\n{lines}\n]}}\n', encoding="utf-8")
    click.echo(f"{len(results)} results written to {target}")


if __name__ == "__main__":
    main()
