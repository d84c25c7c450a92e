"""`dsv4-lab generate`: the tokens after a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.prompts import chosen_prompt, prompt_options, room_for, show_piece, whole_numbers
from lab.cli.sampling import chosen_sampling, sampling_options
from lab.cli.settings import current
from lab.engine_steps import open_engine
from lab.generation import generate, generate_spec
from lab.record.environment import capture
from lab.spec_run import with_drafter


@click.command("generate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@prompt_options
@click.option("-n", "count", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="How many tokens at most.")  # fmt: skip
@click.option("--spec", "speculative", is_flag=True, help="Draft with the model's own drafter.")
@sampling_options
@click.option("--stop", metavar="LIST", default="",
              help="Token ids that end it; text also ends with its own end token.")  # fmt: skip
@click.option("--max-seq", type=click.IntRange(1), metavar="N",
              help="Make room for this many positions.  [default: prompt and N]")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def generate_tokens(
    folder: Path,
    ids: str | None,
    words: str | None,
    text_file: IO[bytes] | None,
    count: int,
    speculative: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    stop: str,
    max_seq: int | None,
    backend: str,
    devices: str,
    arms: tuple[str, ...],
) -> None:
    """Print what follows a prompt, as it comes, with its speed: tokens, or text after text.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:tiny,layout=nextn,seed=7. A prompt
    that does not fit the model with its continuation is refused, never cut.

    \b
    Example:
      dsv4-lab generate tests/data/tiny-s --ids 1,2,3 -n 8
    """
    sampling = chosen_sampling(temperature, top_k, top_p, min_p, current().seed)
    ends = set(whole_numbers(stop))
    prompt, tokenizer = chosen_prompt(folder, ids, words, text_file)
    if tokenizer is not None and tokenizer.eos is not None:
        ends.add(tokenizer.eos)
    chosen = with_drafter(folder, switches(arms)) if speculative else switches(arms)
    room = room_for(folder, len(prompt), count, max_seq)
    engine = open_engine(folder, device_list(devices), backend, room, chosen)
    reader = None if tokenizer is None else tokenizer.stream()
    pieces: list[str] = []

    def show(token: int) -> None:
        gap = " " if pieces else ""
        pieces.append(f"{gap}{token}" if reader is None else reader.feed(token))
        show_piece(pieces[-1])

    make = generate_spec if speculative else generate
    made = make(engine, prompt, count, stop=ends, sampling=sampling, on_token=show)
    if reader is not None:
        pieces.append(reader.end())
        show_piece(pieces[-1])
    if current().json:
        text.emit_json(
            "generate", model=str(folder), env=capture(engine.last.device),
            stages=len(engine.stages),
            placed_bytes=sum(s.size_bytes for s in engine.placement.stages),
            prompt=made.prompt, tokens=made.tokens, stopped=made.stopped,
            text=None if reader is None else "".join(pieces),
            prefill_s=made.prefill_s, decode_s=made.decode_s, tokens_per_s=made.tokens_per_s,
            step_s=made.step_s, rounds=None if made.run is None else len(made.run.rounds),
            arms=engine.arms.to_json(), device=engine.last.device.name,
        )  # fmt: skip
        return
    click.echo()
    if made.run is not None:
        text.note(f"{len(made.run.rounds)} rounds, {made.run.tokens_per_round:.2f} tokens a round")
    text.note(
        f"{len(made.prompt)} tokens of prompt in {made.prefill_s:.2f} s,"
        f" {len(made.tokens)} generated, {made.tokens_per_s:.2f} tokens/s"
        f" on {engine.last.device.name}"
    )
