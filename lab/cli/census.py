"""`dsv4-lab census`: what a checkpoint holds, validated from its headers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from dsv4.checkpoint.census import Artifact, Census, open_artifact
from dsv4.checkpoint.values import check_all_values
from lab.cli import text
from lab.cli.drafter_census import is_drafter, show_drafter
from lab.cli.settings import current

_LINEAGES = {
    "none": "no tail",
    "nextn": "NextN block (original release)",
    "dspark": "DSpark drafter (0731)",
}


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.option("--headers-only", is_flag=True,
              help="Accept files that end after their headers.")  # fmt: skip
@click.option("--values", is_flag=True, help="Read every tensor and check its values too.")
def census(folder: Path, headers_only: bool, values: bool) -> None:
    """Validate a checkpoint from its headers and count what it holds.

    DIR is a folder with config.json and safetensors files, or a JSON file (.json, .json.gz) with
    `config` and `shards`, a map from file names to headers. A checkpoint that breaks a rule is
    refused with the rule's name, and the command leaves with 2. Drafters (DFlash, DSpark, DFlash2)
    are told with every choice that costs acceptance when it is wrong.

    \b
    Example:
      dsv4-lab census checkpoints/flash --json
    """
    if values and headers_only:
        raise click.UsageError("--values reads data, --headers-only says there is none")
    if is_drafter(folder):
        show_drafter(folder)
        return
    artifact = open_artifact(folder, headers_only=headers_only)
    if values:
        _check(artifact)
    if current().json:
        text.emit_json("census", path=str(folder), values_checked=values, **_document(artifact))
        return
    for line in _banner(artifact):
        text.say(line)
    text.say()
    text.say(text.table(("component", "tensors", "bytes", "GiB", "share %"), _rows(artifact)))
    text.say()
    types = [(t, n, size, *_scaled(size, artifact.census)) for t, (n, size) in _types(artifact)]
    text.say(text.table(("stored type", "tensors", "bytes", "GiB", "share %"), types))
    if ignored := artifact.census.ignored:
        text.say(f"\n{len(ignored)} copies of embedding and head are ignored, such as {ignored[0]}")
    text.say("\nheaders and values are valid" if values else "\nheaders are valid")


def _check(artifact: Artifact) -> None:
    with text.progress("values", artifact.census.size_bytes) as bar:
        check_all_values(artifact, progress=bar.update)


def _banner(artifact: Artifact) -> list[str]:
    found, c = artifact.census, artifact.config
    classes = Counter(c.layer_class(n) for n in range(c.n_layers))
    shape = ", ".join(f"{n} {kind}" for kind, n in classes.items())
    stages = f", {c.stages} stages" if found.layout.lineage == "dspark" else ""
    return [
        f"DeepSeek-V4, {_LINEAGES[found.layout.lineage]}{stages}, {found.layout.precision}",
        f"{c.n_layers} layers ({shape}; {c.n_hash_layers} hash-routed), hidden {c.dim},"
        f" {c.n_routed_experts} experts of which {c.n_activated_experts} active",
        f"{len(found.entries)} tensors in {_files(len(artifact.tensors.files))},"
        f" {found.size_bytes} bytes ({found.size_bytes / 2**30:.2f} GiB)",
    ]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _rows(artifact: Artifact) -> list[tuple[Any, ...]]:
    found = artifact.census
    rows = [
        (f"tail: {name}" if tail else name, count, size, *_scaled(size, found))
        for tail in (False, True)
        for name, (count, size) in found.by_component(tail=tail).items()
    ]
    return [
        *rows,
        ("total", len(found.entries), found.size_bytes, *_scaled(found.size_bytes, found)),
    ]


def _scaled(size_bytes: int, found: Census) -> tuple[str, str]:
    return f"{size_bytes / 2**30:.3f}", f"{100 * size_bytes / found.size_bytes:.2f}"


def _types(artifact: Artifact) -> list[tuple[str, tuple[int, int]]]:
    return list(artifact.census.by_dtype().items())


def _document(artifact: Artifact) -> dict[str, Any]:
    found, c = artifact.census, artifact.config
    return {
        "lineage": found.layout.lineage,
        "stages": c.stages,
        "precision": found.layout.precision,
        "layers": [c.layer_class(n) for n in range(c.n_layers)],
        "hash_layers": c.n_hash_layers,
        "experts": c.n_routed_experts,
        "tensors": len(found.entries),
        "files": len(artifact.tensors.files),
        "bytes": found.size_bytes,
        "components": {
            "trunk": _totals(found.by_component(tail=False)),
            "tail": _totals(found.by_component(tail=True)),
        },
        "dtypes": _totals(found.by_dtype()),
        "blocks": found.by_block(),
        "ignored": list(found.ignored),
    }


def _totals(totals: dict[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"tensors": count, "bytes": size} for name, (count, size) in totals.items()}
