"""`dsv4-lab demo`: a function body, written with and without the drafter."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import IO

import click

from dsv4.errors import Refusal
from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.exit_codes import ExitCode
from lab.cli.prompts import config_of, room_for, show_piece
from lab.cli.settings import current
from lab.demo import EXAMPLE, PROMPT, Demo, DemoRound, require_example, run_demo, spelled
from lab.engine_steps import open_engine
from lab.generation import Generated
from lab.record.environment import capture
from lab.spec_run import with_drafter
from lab.tokenizer import Tokenizer, open_tokenizer

_TOKEN_WIDTH = 8


@click.command("demo")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--text", "words", metavar="TEXT", help="Another beginning than the built-in one.")
@click.option("--text-file", type=click.File("rb"), metavar="FILE", help="The same from a file.")
@click.option("-n", "count", type=click.IntRange(2), default=96, show_default=True, metavar="N",
              help="How many tokens at most.")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def demo(
    folder: Path | None,
    words: str | None,
    text_file: IO[bytes] | None,
    count: int,
    backend: str,
    devices: str,
    arms: tuple[str, ...],
) -> None:
    """Write a function body twice, without the drafter and with it, and compare both.

    DIR is a checkpoint folder with a tokenizer and a drafter; the example of the checkout when none
    is given. The text ends with the body. Leaves with 1 when the texts differ.

    \b
    Example:
      dsv4-lab demo examples/v4-python --text 'def area(width, height):'
    """
    if words is not None and text_file is not None:
        raise click.UsageError("give the beginning with --text or with --text-file, one of them")
    begin, place = time.monotonic(), EXAMPLE if folder is None else folder
    require_example(place)
    config = config_of(place)
    tokenizer = open_tokenizer(place, config)
    given = text_file.read() if text_file is not None else PROMPT if words is None else words
    prompt = tokenizer.encode(given)
    chosen = with_drafter(place, switches(arms))
    if chosen["drafter"] is None:
        raise Refusal(
            "a text with a drafter was asked for\n  no blocks lie behind the trunk\n"
            f"  in {place}\n  open a checkpoint with DSpark stages or a next-token block"
        )
    room = room_for(place, len(prompt), count, None)
    engine = open_engine(place, device_list(devices), backend, room, chosen)
    name = engine.last.device.name
    shown = given if isinstance(given, str) else given.decode("utf-8", "replace")
    text.say(f"{place}: {config.n_layers} layers, {config.n_routed_experts} experts, on {name}")
    text.note("kernels are compiled when they are first used; the next time they are there")
    text.say("\nwithout drafts", bold=True)
    show_piece(shown)
    made, body = run_demo(
        engine, tokenizer, prompt, count,
        on_text=show_piece,
        on_rounds=_begin_rounds,
        on_round=lambda done: _show_round(tokenizer, done),
    )  # fmt: skip
    _end(made, time.monotonic() - begin)
    if current().json:
        assert made.drafted.run is not None, "it was speculative"
        text.emit_json(
            "demo", model=str(place), device=name, env=capture(engine.last.device), given=shown,
            text=body, tokens=made.plain.tokens, stopped=made.plain.stopped,
            identity=made.first_difference is None, first_difference=made.first_difference,
            plain_s=made.plain.decode_s, drafted_s=made.drafted.decode_s,
            tokens_per_round=len(made.drafted.tokens) / max(1, len(made.rounds)),
            acceptance=made.drafted.run.acceptance(),
            rounds=[
                {"token": r.token, "accepted": r.accepted, "dropped": r.dropped}
                for r in made.rounds
            ],
            elapsed_s=time.monotonic() - begin, arms=engine.arms.to_json(),
        )  # fmt: skip
    sys.exit(ExitCode.OK if made.first_difference is None else ExitCode.CONTRACT)


def _begin_rounds(plain: Generated) -> None:
    text.say(f"\n{_spent(plain)}: one a step\n")
    text.say("with its drafter", bold=True)
    text.say(f"{'token':<{_TOKEN_WIDTH}}accepted drafts / dropped ones")


def _show_round(tokenizer: Tokenizer, made: DemoRound) -> None:
    """One line: the decided token, what was accepted, and behind a slash what was not."""
    first = spelled(tokenizer, [made.token])
    line = f"{first:<{_TOKEN_WIDTH}}" + click.style(spelled(tokenizer, made.accepted), fg="green")
    if made.dropped:
        line += " / " + click.style(spelled(tokenizer, made.dropped), fg="red")
    text.say(line.rstrip())


def _end(made: Demo, elapsed_s: float) -> None:
    run = made.drafted.run
    assert run is not None, "it was speculative"
    each = len(made.drafted.tokens) / max(1, len(made.rounds))
    shares = ", ".join(f"{a}/{n}" for a, n in run.acceptance())
    text.say(f"{_spent(made.drafted)}: {len(made.rounds)} rounds, {each:.2f} tokens a round")
    text.say(f"accepted by place {shares or '-'}\n")
    if made.first_difference is None:
        text.say(f"{text.verdict('SAME')}  both texts, all {len(made.plain.tokens)} tokens")
    else:
        text.say(f"{text.verdict('FAIL')}  the texts differ from token {made.first_difference} on")
    text.note(f"{elapsed_s:.0f} s in all")


def _spent(made: Generated) -> str:
    return f"{len(made.tokens)} tokens in {text.scaled(made.decode_s, 's')}"
