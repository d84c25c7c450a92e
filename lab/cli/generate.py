"""`dsv4-lab generate`: the tokens after a prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lab.cli import text
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.sampling import chosen_sampling, sampling_options
from lab.cli.settings import current
from lab.engine_steps import open_engine
from lab.generation import generate, generate_spec, load_tokenizer
from lab.record.environment import capture
from lab.spec_run import with_drafter


@click.command("generate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--ids", metavar="LIST", help="Token ids of the prompt, with commas between them.")
@click.option("--text", "words", metavar="TEXT", help="The prompt as text; needs tokenizer.json.")
@click.option("-n", "count", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="How many tokens at most.")  # fmt: skip
@click.option("--spec", "speculative", is_flag=True, help="Draft with the model's own drafter.")
@sampling_options
@click.option("--stop", metavar="LIST", default="", help="Token ids that end it.")
@click.option("--max-seq", type=click.IntRange(1), metavar="N",
              help="Make room for this many positions.  [default: prompt and N]")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def generate_tokens(
    folder: Path,
    ids: str | None,
    words: str | None,
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
    """Print the greedy tokens that follow a prompt, as they come, with their speed.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:tiny,layout=nextn,seed=7.

    \b
    Example:
      dsv4-lab generate tests/data/tiny-s --ids 1,2,3 -n 8
    """
    if (ids is None) == (words is None):
        raise click.UsageError("give the prompt with --ids or with --text, one of them")
    sampling = chosen_sampling(temperature, top_k, top_p, min_p, current().seed)
    chosen = with_drafter(folder, switches(arms)) if speculative else switches(arms)
    tokenizer = load_tokenizer(folder) if words is not None else None
    prompt = tokenizer.encode(words).ids if tokenizer is not None else whole_numbers(ids or "")
    engine = open_engine(
        folder, device_list(devices), backend, max_seq or len(prompt) + count, chosen
    )
    shown: list[int] = []

    def show(token: int) -> None:
        if current().json:
            return
        piece = f" {token}" if shown else str(token)
        if tokenizer is not None:
            # A character may need several tokens, so what is new is taken from the whole text.
            before = tokenizer.decode(shown)
            piece = tokenizer.decode([*shown, token])[len(before) :]
        shown.append(token)
        click.echo(piece, nl=False)
        sys.stdout.flush()

    make = generate_spec if speculative else generate
    made = make(engine, prompt, count, stop=whole_numbers(stop), sampling=sampling, on_token=show)
    if current().json:
        text.emit_json(
            "generate", model=str(folder), env=capture(engine.last.device),
            stages=len(engine.stages),
            placed_bytes=sum(s.size_bytes for s in engine.placement.stages),
            prompt=made.prompt, tokens=made.tokens, stopped=made.stopped,
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


def whole_numbers(words: str) -> Sequence[int]:
    """The ids of a list. Errors: UsageError for what is no number."""
    parts = [p for p in (part.strip() for part in words.split(",")) if p]
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise click.UsageError(f"{words!r} is no list of token ids such as 1,2,3")
    return [int(p) for p in parts]
