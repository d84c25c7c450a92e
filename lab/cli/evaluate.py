"""`dsv4-lab eval`: a model on real text, in bits per byte."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dsv4.engine.source import open_source
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal
from dsv4.runtime.device import open_device
from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.evaluation_text import document, show
from lab.cli.exit_codes import ExitCode
from lab.cli.prompts import config_of
from lab.cli.settings import current
from lab.evaluation.calibration import Calibration
from lab.evaluation.evaluate import BY, Place, beside, evaluate
from lab.evaluation.texts import packed, read_texts
from lab.evaluation.windows import overlap_of
from lab.minted import model_of
from lab.recording import Recorder
from lab.report.figures import figure, reliability
from lab.report.page import svg_file
from lab.result import FAIL, PASS
from lab.spec_run import with_drafter
from lab.tokenizer import open_tokenizer
from oracle.laws import LAWS

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("eval")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--text", "first", type=_FILE, multiple=True, metavar="FILE...",
              help="The texts; more files may follow.")  # fmt: skip
@click.argument("more", nargs=-1, type=_FILE, metavar="")
@click.option("--context", type=click.IntRange(1), metavar="N",
              help="Tokens of a window.  [default: the model's positions, up to 8192]")  # fmt: skip
@click.option("--stride", type=click.IntRange(1), metavar="N",
              help="How far windows lie apart.  [default: half a window]")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), metavar="BYTES",
              help="Score the first bytes of each file only.")  # fmt: skip
@click.option("--by", type=click.Choice(BY), default="prompt", show_default=True,
              help="Compute rows in pieces of a prompt, or as decoding does.")  # fmt: skip
@click.option("--against", multiple=True, metavar="NAME=VALUE",
              help="Compare with an engine under this switch instead of --arm's.")  # fmt: skip
@click.option("--law", type=click.Choice(list(LAWS)), help="Compare with the float64 model.")
@click.option("--rounds", type=click.IntRange(0), default=256, show_default=True, metavar="N",
              help="Rounds of the drafter behind prefixes of the texts; 0 for none.")  # fmt: skip
@click.option("--every", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="Tokens between prefixes at least.")  # fmt: skip
@click.option("--prompts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Write behind so many prompts, with drafts and without.")  # fmt: skip
@click.option("--length", type=click.IntRange(1), default=64, show_default=True, metavar="N",
              help="Tokens behind each prompt at most.")  # fmt: skip
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the reliability picture of the confidence as SVG.")  # fmt: skip
@click.option("--no-record", is_flag=True, help="Keep nothing in the record store.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def evaluate_texts(
    folder: Path,
    first: tuple[Path, ...],
    more: tuple[Path, ...],
    context: int | None,
    stride: int | None,
    limit: int | None,
    by: str,
    against: tuple[str, ...],
    law: str | None,
    rounds: int,
    every: int,
    prompts: int,
    length: int,
    picture: Path | None,
    no_record: bool,
    backend: str,
    devices: str,
    arms: tuple[str, ...],
) -> None:
    """Score texts with a model: bits per byte beside gzip and xz, and its drafter on the same text.

    Every byte is scored once, in windows that overlap. --against and --law put a second model
    beside the first one, on the same windows. The drafter plays a round behind each of --rounds
    prefixes of the texts, judged by the trunk's greedy choices. Behind --prompts it writes by plain
    steps and with drafts, and in turn under --against, if that loads the same weights. Leaves with
    1 when a text that is written with drafts differs.

    \b
    Example:
      dsv4-lab eval examples/v4-python --text a.py b.py --law smooth --limit 2000
    """
    if not first and not more:
        raise click.UsageError("give the texts: --text FILE...")
    if against and law is not None:
        raise click.UsageError("--against and --law both name the second model; give one")
    config = config_of(folder)
    tokenizer = open_tokenizer(folder, config)
    texts = read_texts([*first, *more], tokenizer, limit)
    overlap = overlap_of(config.usable_positions, context, stride, str(folder))
    place = Place(backend, device_list(devices), by)
    chosen = switches(arms)
    drafting = with_drafter(folder, chosen) if rounds or prompts else chosen
    other = switches(against, option="--against")
    if prompts and length >= overlap.context:
        raise Refusal(
            f"{length} tokens behind prompts were asked for\n"
            f"  a window has {overlap.context}, prompt and continuation together\n  in {folder}\n"
            "  give a smaller --length or a larger --context"
        )
    if picture is not None:
        _require_picture(picture, folder, rounds)
    # What cannot be is refused before the first model has taken its time.
    resolve_arms(**other)
    device = open_device(backend, index=place.devices[0])
    recorder = Recorder(current().store, device, enabled=not no_record)
    made = evaluate(
        folder, texts, overlap, place, drafting, text.progress, rounds=rounds, every=every,
        prompts=prompts, length=length, stop=() if tokenizer.eos is None else (tokenizer.eos,),
        rival=with_drafter(folder, other) if against and prompts else None,
    )  # fmt: skip
    second = None
    if against or law is not None:
        second = beside(
            folder, texts, overlap, place, made.scored, text.progress, switches=other, law=law
        )
    found = document(folder, texts, overlap, by, made, packed(texts), second, law, other)
    same = not any(w and w.differing for w in (made.written, made.written_against))
    code = ExitCode.OK if same else ExitCode.CONTRACT
    kept = {"kernel": "eval", "family": "model", "case": folder.name, "outputs": [], **found}
    verdict = PASS if same else FAIL
    recorder.add_document({**kept, "verdict": verdict, "backend": device.backend})
    recorder.finish(code)
    if current().json:
        text.emit_json("eval", **found, env=recorder.env, run=recorder.run_id)
    else:
        show(found, recorder.run_id)
    if picture is not None:
        _draw(picture, None if made.drafting is None else made.drafting.calibration)
    sys.exit(code)


def _require_picture(picture: Path, folder: Path, rounds: int) -> None:
    """Nothing, if there will be something to draw, and a place for it. Errors: Refusal."""
    lineage = open_source(model_of(folder)).census.layout.lineage
    if lineage != "dspark" or not rounds:
        raise Refusal(
            f"a reliability picture was asked for\n  with {rounds} rounds of the drafter"
            f" {lineage!r} no confidence is judged\n  in {folder}\n"
            "  open a checkpoint with DSpark stages, and play some --rounds"
        )
    if not picture.absolute().parent.is_dir():
        raise Refusal(
            f"a reliability picture was to be written\n  its folder is not there\n  at {picture}\n"
            "  make the folder, or name another file"
        )
    figure()


def _draw(picture: Path, told: Calibration | None) -> None:
    if told is None:
        text.warn(f"no draft was judged, so there is no {picture}\n  give a longer text")
        return
    drawn = reliability([(b.low, b.high, b.count, b.confidence, b.accepted) for b in told.bins])
    picture.write_text(svg_file(drawn), encoding="utf-8")
    text.note(f"reliability picture in {picture}")
