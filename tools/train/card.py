"""The card of a trained checkpoint: what it is, what it learned from, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.train.corpus import LEFT_OUT


def card(result: Mapping[str, Any]) -> str:
    """The text of a run's result, as Markdown."""
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
        + """
Remake it with `python -m tools.train run --out build/small`, with `--recorded corpus.json` to be
sure of the corpus.
"""
    )
