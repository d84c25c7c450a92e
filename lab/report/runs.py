"""The model tables of the README, made from committed documents of steps, generations and drafts.

`python -m lab.report.runs DOCUMENT.json ... docs/measured/runs` keeps of each document what the
tables read; `python -m lab.report.readme` prints them between their markers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dsv4.errors import Refusal
from lab.report.markdown import card, markdown

Document = Mapping[str, Any]

_KEPT = {
    "step": ("cards", "steps", "streams"),
    "generate": (
        "stages", "cards", "placed_bytes", "prefill_s", "decode_s", "tokens_per_s", "step_s",
    ),
    "spec": ("stages", "cards", "identity", "plain_step_s", "depths", "cost_of_t", "cost_fit"),
    "draft": (
        "target", "drafter", "tokens_per_round", "acceptance", "phase_s", "prime_s", "decode_s",
        "tokens_per_s", "equals_plain",
    ),
}  # fmt: skip
_ENV = ("device", "cuda", "gpu_settings", "git", "cpu")


def shortened(document: Document) -> dict[str, Any]:
    """The fields that the tables read. Errors: Refusal for a document of another command."""
    command = document.get("command")
    if command not in _KEPT:
        raise Refusal(
            f"a document of {command} was given\n  the tables read {', '.join(_KEPT)}\n"
            "  in lab.report.runs\n  pass what these print with --json"
        )
    env = document["env"]
    found = {k: document.get(k) for k in _KEPT[command]}
    if command in ("generate", "spec"):
        found |= {"prompt": len(document["prompt"]), "tokens": len(document["tokens"])}
    elif command == "draft":
        found["tokens"] = len(document["tokens"])
    return {
        "schema": document["schema"],
        "command": command,
        "model": document.get("model"),
        "env": {k: env.get(k) for k in _ENV},
        **found,
    }


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The committed documents, by file name."""
    return [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.json"))]


def tables(documents: Sequence[Document]) -> str:
    """The generated part: a table for each command that has documents, the card above each."""
    makers = {
        "step": _steps,
        "streams": _streams,
        "generate": _generations,
        "spec": _speculation,
        "draft": _drafts,
    }
    parts = []
    for command, make in makers.items():
        mine = [d for d in documents if _is_told(d, command)]
        for name in dict.fromkeys(map(_named, mine)):
            parts += [f"{name}:", make([d for d in mine if _named(d) == name])]
    return "\n\n".join(parts) or "No run of a model on a card is committed yet."


def _named(document: Document) -> str:
    """The card, and how many of it."""
    count = document.get("cards") or 1
    return card(document["env"]) if count == 1 else f"{count} x {card(document['env'])}"


def _is_told(document: Document, what: str) -> bool:
    if what == "streams":
        return document["command"] == "step" and bool(document.get("streams"))
    return bool(document["command"] == what)


def _steps(documents: Sequence[Document]) -> str:
    rows = []
    for document in documents:
        for step in document["steps"]:
            best_s = step["graph_s"] or step["step_s"]
            rows.append(
                (
                    f"`{document['model']}`",
                    _cards(document),
                    str(step["position"]),
                    str(step["rows"]),
                    str(step["launches"]),
                    f"{step['size_bytes'] / 1e9:.2f}",
                    "graph" if step["graph_s"] else "launches",
                    f"{1e3 * best_s:.2f} ms",
                    f"{step['size_bytes'] / best_s / 1e9:.0f}",
                    f"{step['rows'] / best_s:.0f}",
                    _between(step, best_s),
                )
            )
    header = ("step of", "cards", "context", "rows", "launches", "GB", "sent as", "time", "GB/s",
              "rows/s", "between cards")  # fmt: skip
    return markdown(header, rows)


def _between(step: Mapping[str, Any], best_s: float) -> str:
    """What stages or ranks exchange, and its share of the step."""
    if step.get("joins"):
        spent_s = step["joins"] * step["join_s"]
        return f"{step['joins']} joins of {1e6 * step['join_s']:.1f} us: {spent_s / best_s:.1%}"
    if step.get("boundary_bytes"):
        return f"{1e6 * step['boundary_s']:.1f} us: {step['boundary_s'] / best_s:.1%}"
    return "-"


def _streams(documents: Sequence[Document]) -> str:
    rows = [
        (
            f"`{d['model']}`",
            _cards(d),
            str(s["streams"]),
            f"{1e3 * s['alone_s']:.2f} ms",
            f"{1 / s['alone_s']:.0f}",
            f"{1e3 * s['step_s']:.2f} ms",
            f"{s['rows_per_s']:.0f}",
        )
        for d in documents
        for s in d["streams"]
    ]
    header = ("streams in turns of", "cards", "streams", "a step of one alone", "tokens/s",
              "a step of all", "tokens/s of all")  # fmt: skip
    return markdown(header, rows)


def _cards(document: Document) -> str:
    return str(document.get("cards") or 1)


def _generations(documents: Sequence[Document]) -> str:
    rows = [
        (
            f"`{d['model']}`",
            str(d["stages"]),
            _cards(d),
            f"{d['placed_bytes'] / 1e9:.1f}",
            str(d["prompt"]),
            f"{d['prefill_s']:.2f} s",
            str(d["tokens"]),
            f"{d['tokens_per_s']:.1f}",
            f"{1e3 * d['step_s']:.2f} ms" if d["step_s"] else "-",
        )
        for d in documents
    ]
    header = ("generation of", "stages", "cards", "GB placed", "prompt", "prefill", "tokens",
              "tokens/s", "median step")  # fmt: skip
    return markdown(header, rows)


def _speculation(documents: Sequence[Document]) -> str:
    parts = []
    for d in documents:
        identity = "the same tokens" if d["identity"] else "OTHER TOKENS"
        how = "one stage" if d["stages"] == 1 else f"{d['stages']} stages"
        how += f" on {d['cards']} cards" if (d.get("cards") or 1) > 1 else ""
        parts.append(
            f"`{d['model']}`, {how}, {d['tokens']} tokens after {d['prompt']}, {identity} as plain"
            " decoding at every T; cost(T) is a verify of T rows as one graph, without the drafts:"
        )
        rows = [_depth(run, {c["rows"]: c for c in d["cost_of_t"]}) for run in d["depths"]]
        header = ("rows T", "rounds", "tokens a round", "cost(T)", "cost(T)/cost(1)",
                  "tokens/s of verifying", "median round")  # fmt: skip
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def _depth(run: Mapping[str, Any], costs: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    cost, round_s = costs.get(run["depth"]), run.get("round_s")
    each = run["tokens_per_round"]
    verify = ("-", "-", "-")
    if cost is not None:
        spent = cost["time_s"]
        verify = (f"{1e3 * spent:.2f} ms", f"{cost['relative']:.2f}", f"{each / spent:.0f}")
    median = f"{1e3 * round_s:.2f} ms" if round_s else "-"
    return (str(run["depth"]), str(run["rounds"]), f"{each:.2f}", *verify, median)


def _drafts(documents: Sequence[Document]) -> str:
    phases = list(dict.fromkeys(p for d in documents for p in d["phase_s"]))
    rows = [
        (
            d["target"]["kind"],
            d["drafter"].get("family", "-"),
            str(d["tokens"]),
            f"{d['tokens_per_round']:.2f}",
            f"{d['tokens_per_s']:.1f}",
            *(f"{1e3 * d['phase_s'].get(p, 0.0):.1f} ms" for p in phases),
        )
        for d in documents
    ]
    return markdown(("target", "drafter", "tokens", "a round", "tokens/s", *phases), rows)


@click.command()
@click.argument("documents", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(documents: tuple[Path, ...], folder: Path) -> None:
    """Shorten documents into the folder of committed runs.

    Example: python -m lab.report.runs step.json spec.json docs/measured/runs
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in documents:
        try:
            kept = shortened(json.loads(path.read_text(encoding="utf-8")))
        except Refusal as error:
            raise click.ClickException(f"{path.name}: {error}") from None
        (folder / path.name).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        click.echo(f"{folder / path.name} written")


if __name__ == "__main__":
    main()
