"""The card of a trained checkpoint: what it is, what it learned from, and how well."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dsv4.errors import Refusal
from tools.train.corpus import LEFT_OUT

RESULT: Final = "result.json"
EVALUATIONS: Final = "evaluations.json"
_KEPT: Final = ("device", "size_bytes", "bits_per_byte", "by", "windows", "arms", "against",
                "drafter", "written", "written_against")  # fmt: skip
_TORCH: Final = ("engine", "smooth", "size_bytes")


def write_card(folder: Path, evaluations: Sequence[Path]) -> Path:
    """Write the card of a checkpoint folder from its result and documents of `eval` and `score`.

    What it needs of the documents is kept beside it; without any, what was kept is told again.
    Errors: Refusal when the folder has no result, or a file is no such document.
    """
    result, kept = folder / RESULT, folder / EVALUATIONS
    if not result.is_file():
        raise Refusal(
            f"a card was asked for; the folder has no {RESULT}\n  in {folder}\n"
            "  give the folder of a run, or of the example"
        )
    told = [_told(file) for file in evaluations]
    if told:
        kept.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    elif kept.is_file():
        told = json.loads(kept.read_text(encoding="utf-8"))
    out = folder / "README.md"
    out.write_text(card(json.loads(result.read_text(encoding="utf-8")), told), encoding="utf-8")
    return out


def _told(file: Path) -> dict[str, Any]:
    """The numbers of a document: no paths, and nothing of the machine but its device."""
    try:
        # Older documents have no prompts that were written under a second set of switches.
        found = {"written_against": None, **json.loads(file.read_text(encoding="utf-8"))}
        return {name: found[name] for name in (_TORCH if "smooth" in found else _KEPT)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(
            f"a document of eval was asked for: {error!r}\n  in {file}\n"
            "  give what `dsv4-lab eval --json` or `score` printed"
        ) from None


def card(result: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of a run's result and of evaluations of its checkpoint, as Markdown."""
    corpus, bits, settings = result["corpus"], result["bits_per_byte"], result["settings"]
    train, held_out = corpus["train"], corpus["held_out"]
    steps, seconds, sizes = result["steps"], result["seconds"], result["sizes_bytes"]
    accepted = result["drafter"].get("held_out_accepted", [])
    places = " | ".join(str(n + 1) for n in range(len(accepted)))
    shares = " | ".join(f"{share:.1%}" for share in accepted)
    return (
        f"""# A V4 that writes Python

{result["parameters"] / 1e6:.1f} million numbers, every structure of the published model and its
DSpark drafter, trained from nothing on bytes of the Python standard library. Tokens are bytes
0..255, then begin 256, end 257, padding 258 and the drafter's noise 259.

## Data

The sources of the standard library of {corpus["release"]} (licence {corpus["licence"]}) and of its
tests, without {", ".join(f"`{name}`" for name in LEFT_OUT)} and without the tests of what is held
out. An epoch takes the library twice and its tests once.

| | files | bytes | SHA-256 of names and contents |
|---|---|---|---|
| training | {train["files"]} | {train["bytes"]} | `{train["sha256"]}` |
| held out | {held_out["files"]} | {held_out["bytes"]} | `{held_out["sha256"]}` |

Held out are whole modules, by a hash of their names: {", ".join(held_out["modules"])}.

## Held-out text

| bits per byte | |
|---|---|
| this model, float32 with the engine's roundings | {bits["engine"]:.4f} |
| the same without codes of activations | {bits["without_activation_codes"]:.4f} |
| `xz -9`, all files as one | {bits["xz"]:.4f} |
| `xz -9`, each file alone | {bits["xz_each"]:.4f} |
| `gzip -9`, all files as one | {bits["gzip"]:.4f} |

{result["below_xz"]:.1%} below `xz -9` on the same files as one.

Share of blocks of drafts that are right up to a place, where the text goes on as the trunk would:

| place | {places} |
|---|{"---|" * len(accepted)}
| accepted | {shares} |
{_engine(result, evaluations)}
## Training

{steps["trunk"]} steps of {settings["batch"]} x {settings["length"]} tokens for the trunk in
{seconds["trunk"] / 60:.1f} minutes, {steps["drafter"]} steps of {settings["draft_batch"]} x
{settings["anchors"]} drafts for the drafter in {seconds["drafter"] / 60:.1f} minutes, on
{result["device"]} with torch {result["versions"]["torch"]}, seed {settings["seed"]}. The last
{1 - settings["coded_from"]:.0%} of the trunk and the last half of the drafter trained with the
codes that are stored here. `loss.svg` shows the losses, `docs/training.md` the method.

| layout | bytes of the folder |
|---|---|
"""
        + "".join(f"| {name} | {size} |\n" for name, size in sizes.items())
        + f"""
## Remake it

```
python -m tools.train run --out build/small --recorded examples/v4-python/corpus.json
python -m tools.train export --run examples/v4-python --out build/nvfp4 --layout 0731-nvfp4
```

The first line trains for as many steps as this model learned for; {_ended(settings)} The second
one writes the NVFP4 layout of these weights. LICENSE says under which terms they are given.
"""
    )


def _ended(settings: Mapping[str, Any]) -> str:
    if settings["minutes"] is None:
        return "this run ended by them too."
    return (
        f"this run ended\nby time, `--minutes {settings['minutes']:g}"
        f" --draft-minutes {settings['draft_minutes']:g}`."
    )


def _engine(result: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> str:
    """What the engine says of the checkpoint; nothing where nobody asked it."""
    if not evaluations:
        return ""
    torch = {e["size_bytes"]: e["engine"] for e in evaluations if "smooth" in e}
    torch[result["corpus"]["held_out"]["bytes"]] = result["bits_per_byte"]["engine"]
    evaluations = [e for e in evaluations if "smooth" not in e]
    rows = [_scored(torch, e) for e in evaluations]
    text = (
        "\n## The engine\n\nDocuments of `dsv4-lab eval` on held-out files, or on their first"
        f" bytes, kept in `{EVALUATIONS}`.\nBeside a score stands by how much another one of the"
        " same bytes differs from it.\n\n"
        + _table(("device", "rows by", "switches", "bytes", "bits per byte", "beside it"), rows)
    )
    for found in evaluations:
        if found["drafter"] is not None:
            text += _drafts(found)
    written = [row for e in evaluations for row in _sides(e)]
    if written:
        heads = ("device", "switches", "prompts", "tokens", "differing", "tokens a round",
                 "tokens/s plain", "tokens/s drafted")  # fmt: skip
        text += (
            "\nPlain decoding against rounds, behind held-out prompts. Two sides of one document"
            "\nstand one below the other; with the same switches they tell how far sides differ by"
            " themselves.\n\n"
        )
        text += _table(heads, written)
    return text


def _scored(torch: Mapping[int, float], found: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of scores; torch: what it says of so many bytes, which tell the text."""
    beside, second = "-", found["against"]
    if second is not None:
        switches = " ".join(f"{k}={v}" for k, v in (second["switches"] or {}).items() if v)
        name = f"law {second['law']}" if second["law"] else f"`{switches}`"
        beside = f"{name}: {second['relative']:+.3%}"
    elif found["size_bytes"] in torch:
        beside = f"torch: {torch[found['size_bytes']] / found['bits_per_byte'] - 1:+.3%}"
    size, bits = str(found["size_bytes"]), f"{found['bits_per_byte']:.4f}"
    return (found["device"], found["by"], _switches(found["arms"]), size, bits, beside)


def _drafts(found: Mapping[str, Any]) -> str:
    drafter = found["drafter"]
    text = f"\n{drafter['rounds']} rounds behind prefixes of the files, {found['device']}:\n\n"
    off, slot = drafter["window_off"], drafter["window_slot"]
    places = off["acceptance"]
    rows = []
    for name, one in (("off", off), (f"slot {slot['tau']:g}", slot)):
        judged = [*one["acceptance"], *[(0, 0)] * (len(places) - len(one["acceptance"]))]
        shares = [f"{a}/{n} ({a / n:.1%})" if n else "-" for a, n in judged]
        rows.append((name, f"{one['tokens_per_round']:.2f}", f"{one['rows_per_round']:.2f}",
                     *shares))  # fmt: skip
    heads = ("window", "tokens a round", "rows a round", *(f"place {i + 1}" for i in
             range(len(places))))  # fmt: skip
    text += _table(heads, rows)
    told = drafter["calibration"]
    if told is None:
        return text
    text += (
        f"\nConfidence of {told['count']} judged drafts, expected calibration error"
        f" {told['error']:.3f}:\n\n"
    )
    bins = [
        (f"{b['low']:.1f} to {b['high']:.1f}", str(b["count"]), f"{b['confidence']:.3f}",
         f"{b['accepted']:.3f}")
        for b in told["bins"] if b["count"]
    ]  # fmt: skip
    return text + _table(("confidence", "drafts", "mean", "accepted"), bins)


def _sides(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a document's prompts: under its own switches, then under the second ones."""
    own, other = found["written"], found.get("written_against")
    rows = [_written(found, found["arms"], own)] if own else []
    if other:
        rows.append(_written(found, {**found["arms"], **other["switches"]}, other))
    return rows


def _written(
    found: Mapping[str, Any], arms: Mapping[str, Any], one: Mapping[str, Any]
) -> tuple[str, ...]:
    counts = (str(one[name]) for name in ("prompts", "tokens", "differing"))
    rate = f"{one['tokens_per_round']:.2f}"
    # A CPU's seconds say nothing about a card.
    speeds = ("plain_tokens_per_s", "drafted_tokens_per_s")
    told = ("-" if found["device"].startswith("host") else f"{one[name]:.0f}" for name in speeds)
    return (found["device"], _switches(arms), *counts, rate, *told)


def _switches(arms: Mapping[str, Any]) -> str:
    """The switches that users of both kinds of rounds tell apart."""
    window = arms.get("vt", "off")
    return f"`vt={window}`" if window == "off" else f"`vt={window} vt_tau={arms['vt_tau']}`"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
