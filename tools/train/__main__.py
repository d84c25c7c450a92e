"""The command line: `python -m tools.train run --out DIR`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click

from dsv4.errors import Dsv4Error, Refusal
from tools.train.card import write_card
from tools.train.corpus import (
    check_recorded,
    copy_corpus,
    library_folder,
    read_corpus,
    read_record,
)


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train, export and check the small V4 of `examples/`."""


@main.command()
@click.option("--library", type=click.Path(path_type=Path), help="folder of a standard library")
@click.option("--recorded", type=click.Path(path_type=Path), help="refuse any other corpus")
@click.option("--copy", type=click.Path(path_type=Path), help="write its files into a new folder")
@click.option("--held-out", "paths", is_flag=True, help="print the paths of held-out files instead")
def corpus(library: Path | None, recorded: Path | None, copy: Path | None, paths: bool) -> None:
    """Print what the corpus is, as JSON: release, sizes, digests, held-out modules.

    Example: dsv4-lab eval DIR --text $(python -m tools.train corpus --held-out)
    """
    found = read_corpus(library)
    if recorded is not None:
        check_recorded(found, read_record(recorded))
    if copy is not None:
        copy_corpus(found, copy)
    if paths:
        for file in found.held_out:
            click.echo(library_folder(library) / file.name)
        return
    click.echo(json.dumps(found.record(), indent=1))


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder of the run")
@click.option("--size", default="stdlib", help="stdlib, or smoke for seconds on a CPU")
@click.option("--seed", default=0)
@click.option("--minutes", type=float, help="end the trunk's training after so long")
@click.option("--draft-minutes", type=float, help="end the drafter's training after so long")
@click.option("--steps", type=int, help="steps of the trunk")
@click.option("--draft-steps", type=int, help="steps of the drafter")
@click.option("--batch", type=int, help="sequences of a step")
@click.option("--length", type=int, help="tokens of a sequence")
@click.option("--rate", type=float, help="of matrices")
@click.option("--plain-rate", type=float, help="of everything else")
@click.option("--decay", type=float, help="of matrices, times their rate")
@click.option("--dropout", type=float)
@click.option("--anchors", type=int, help="drafts of a sequence")
@click.option("--evaluate-every", type=int, help="steps between looks at held-out text")
@click.option("--library", type=click.Path(path_type=Path), help="folder of a standard library")
@click.option("--recorded", type=click.Path(path_type=Path), help="refuse any other corpus")
@click.option("--leave-after", type=float, help="minutes after which to save and leave, to go on")
@click.option("--device", default="auto", help="cuda, cpu, or what is there")
@click.option("--threads", default=0, help="of a CPU; 0 for all")
@click.option("--quiet", is_flag=True, help="no progress line")
def run(
    out: Path,
    library: Path | None,
    recorded: Path | None,
    leave_after: float | None,
    device: str,
    threads: int,
    quiet: bool,
    **given: Any,
) -> None:
    """Train trunk and drafter, then export; the same command goes on where it stopped.

    Example: python -m tools.train run --out build/small --recorded examples/v4-python/corpus.json
    """
    require_torch()
    import torch

    from tools.train import run as whole
    from tools.train.settings import SIZES, settings_of

    if given["size"] not in SIZES:
        raise Refusal(f"size {given['size']!r} was asked for; there are {', '.join(SIZES)}")
    if threads:
        torch.set_num_threads(threads)
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    result = whole.run(
        read_corpus(library),
        settings_of({k: v for k, v in given.items() if v is not None}),
        out,
        device=torch.device(chosen if device == "auto" else device),
        recorded=read_record(recorded) if recorded else None,
        quiet=quiet,
        leave_after_s=60.0 * leave_after if leave_after is not None else None,
    )
    if result is None:
        click.echo(f"left with the run in {out}; the same command goes on", err=True)
    else:
        click.echo(json.dumps(result, indent=1))


@main.command()
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True,
              help="folder of a run, or of a checkpoint that one exported")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), required=True, help="a new folder")
@click.option("--layout", default="0731", type=click.Choice(["0731", "0731-nvfp4"]))
def export(folder: Path, out: Path, layout: str) -> None:
    """Export a run again, in one layout."""
    require_torch()
    from tools.train.run import exported

    click.echo(f"{exported(folder, out, layout)} bytes of tensors in {out}")


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("files", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--device", default="cpu", help="cuda or cpu")
def score(model: Path, files: tuple[Path, ...], device: str) -> None:
    """Print the torch model's bits per byte of files, in float32, as JSON.

    Windows are those of `dsv4-lab eval`, so that both say the same of the same checkpoint: with
    the engine's roundings, and without those of activations.
    """
    require_torch()
    from tools.train.judging import scored

    click.echo(json.dumps(scored(model, files, device), indent=1))


@main.command("card")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("evaluations", type=click.Path(path_type=Path, exists=True), nargs=-1)
def card_of(model: Path, evaluations: tuple[Path, ...]) -> None:
    """Write the card of a checkpoint again, with what the engine says of it.

    EVALUATIONS are documents of `dsv4-lab eval --json` and of `score`, which is held against what
    has as many bytes; without any, those of the last time.
    """
    click.echo(f"card in {write_card(model, evaluations)}")


def require_torch() -> None:
    """Nothing, if torch is installed. Errors: Refusal that says how to install it."""
    if importlib.util.find_spec("torch") is None:
        raise Refusal(
            "training was asked for, and torch is not installed\n"
            f"  for {sys.executable}\n  install it with: pip install 'dsv4-lab[train]'"
        )


def entry() -> None:
    """Run the command line; a deliberate error is its message and exit code 2."""
    try:
        main(prog_name="python -m tools.train")
    except Dsv4Error as error:
        click.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    entry()
