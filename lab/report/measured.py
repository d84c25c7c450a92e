"""Shortens a kernel-diff document to what the committed tables need.

`python -m lab.report.measured results.json docs/measured/h200.json` keeps verdicts, bounds, times
and digests of every case and drops histograms and locations, so that a reviewed file stays small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

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


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(source: Path, target: Path) -> None:
    """Shorten SOURCE, a kernel-diff --json document, into TARGET, one line a result.

    Example: python -m lab.report.measured results.json docs/measured/h200.json
    """
    document = shortened(json.loads(source.read_text(encoding="utf-8")))
    results = document.pop("results")
    head = json.dumps(document, indent=1).rstrip("}").rstrip()
    lines = ",\n".join(json.dumps(r) for r in results)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'{head},\n "results": [\n{lines}\n]}}\n', encoding="utf-8")
    click.echo(f"{len(results)} results written to {target}")


if __name__ == "__main__":
    main()
