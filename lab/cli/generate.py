"""`dsv4-lab generate`: the tokens after a prompt, or after several at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dsv4.distributed.joining import Seat
from dsv4.engine.engine import Engine
from dsv4.speculation.sampling import SpecSampling
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.generated_text import tell, tell_streams
from lab.cli.sampling import chosen_sampling, sampling_options
from lab.cli.seats import seat_options, seated_engine
from lab.cli.settings import current
from lab.generation import Generated, generate, generate_spec, generate_streams, load_tokenizer
from lab.spec_run import with_drafter


@click.command("generate")
@seat_options
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--ids",
    multiple=True,
    metavar="LIST",
    help="Token ids of the prompt, with commas between them; again for a stream more.",
)
@click.option("--text", "words", metavar="TEXT", help="The prompt as text; needs tokenizer.json.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="How many tokens at most.",
)
@click.option("--spec", "speculative", is_flag=True, help="Draft with the model's own drafter.")
@sampling_options
@click.option("--stop", metavar="LIST", default="", help="Token ids that end it.")
@click.option(
    "--max-seq",
    type=click.IntRange(1),
    metavar="N",
    help="Make room for this many positions.  [default: prompt and N]",
)
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto")
@DEVICES
@ARMS
def generate_tokens(
    *,
    folder: Path,
    ids: tuple[str, ...],
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
    seat: Seat | None,
) -> None:  # fmt: skip
    """Print the greedy tokens that follow a prompt, as they come, with their speed.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:tiny,layout=nextn,seed=7. Several
    --ids run as streams that take turns. With --rank the model is spread over processes, a stage
    each: the others get the same arguments but for --rank. Leaves with 9 when one of them fails.

    \b
    Example:
      dsv4-lab generate tests/data/tiny-s --ids 1,2,3 -n 8
    """
    if (not ids) == (words is None):
        raise click.UsageError("give the prompt with --ids or with --text, one of them")
    sampling = chosen_sampling(temperature, top_k, top_p, min_p, current().seed)
    if len(ids) > 1 and sampling is not None:
        raise click.UsageError("several streams are greedy; give one --ids, or no --temperature")
    chosen = with_drafter(folder, switches(arms)) if speculative else switches(arms)
    tokenizer = load_tokenizer(folder) if words is not None else None
    prompts = [whole_numbers(one) for one in ids]
    if tokenizer is not None:
        prompts = [tokenizer.encode(words).ids]
    ends = whole_numbers(stop)
    request = {
        "prompts": prompts, "count": count, "speculative": speculative, "stop": ends,
        "sampling": repr(sampling),
    }  # fmt: skip
    room = max_seq or max(len(p) for p in prompts) + count
    with seated_engine(
        seat, folder, device_list(devices), backend, room, chosen, request
    ) as engine:
        if len(prompts) > 1:
            streams = generate_streams(engine, prompts, count, stop=ends, speculative=speculative)
            tell_streams(engine, folder, streams.streams, streams.decode_s, seat)
            return
        made = _one(engine, prompts[0], count, ends, sampling, speculative, tokenizer, seat)
    tell(engine, folder, made, seat)


def _one(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    stop: Sequence[int],
    sampling: SpecSampling | None,
    speculative: bool,
    tokenizer: Any,
    seat: Seat | None,
) -> Generated:
    """One stream, whose tokens are printed as they come, by the first process alone."""
    shown: list[int] = []

    def show(token: int) -> None:
        if current().json or (seat is not None and seat.rank > 0):
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
    return make(engine, prompt, count, stop=stop, sampling=sampling, on_token=show)


def whole_numbers(words: str) -> Sequence[int]:
    """The ids of a list. Errors: UsageError for what is no number."""
    parts = [p for p in (part.strip() for part in words.split(",")) if p]
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise click.UsageError(f"{words!r} is no list of token ids such as 1,2,3")
    return [int(p) for p in parts]
