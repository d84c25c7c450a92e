"""`dsv4-lab generate`: what follows a prompt, as tokens or as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

import click

from dsv4.distributed.joining import Seat
from dsv4.engine.engine import Engine
from dsv4.speculation.sampling import SpecSampling
from lab.cli.arms import ARMS, DEVICES, device_list, switches
from lab.cli.generated_text import tell, tell_streams
from lab.cli.prompts import chosen_prompts, prompt_options, room_for, show_piece, whole_numbers
from lab.cli.sampling import chosen_sampling, sampling_options
from lab.cli.seats import seat_options, seated_engine
from lab.cli.settings import current
from lab.generation import Generated, generate, generate_spec, generate_streams
from lab.spec_run import with_drafter
from lab.tokenizer import Tokenizer


@click.command("generate")
@seat_options
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
    *,
    folder: Path,
    ids: tuple[str, ...],
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
    seat: Seat | None,
) -> None:
    """Print what follows a prompt, as it comes, with its speed: tokens, or text after text.

    DIR is a checkpoint folder, or mint:SIZE with settings: mint:tiny,layout=nextn,seed=7. A prompt
    that does not fit the model with its continuation is refused, never cut. Several --ids run as
    streams that take turns. With --rank the model is spread over processes, a stage each: the
    others get the same arguments but for --rank. Leaves with 9 when one of them fails.

    \b
    Example:
      dsv4-lab generate tests/data/tiny-s --ids 1,2,3 -n 8
    """
    sampling = chosen_sampling(temperature, top_k, top_p, min_p, current().seed)
    ends = set(whole_numbers(stop))
    prompts, tokenizer = chosen_prompts(folder, ids, words, text_file)
    if len(prompts) > 1 and sampling is not None:
        raise click.UsageError("several streams are greedy; give one --ids, or no --temperature")
    if tokenizer is not None and tokenizer.eos is not None:
        ends.add(tokenizer.eos)
    chosen = with_drafter(folder, switches(arms)) if speculative else switches(arms)
    request = {
        "prompts": prompts, "count": count, "speculative": speculative, "stop": sorted(ends),
        "sampling": repr(sampling),
    }  # fmt: skip
    room = room_for(folder, max(map(len, prompts)), count, max_seq)
    with seated_engine(
        seat, folder, device_list(devices), backend, room, chosen, request
    ) as engine:
        if len(prompts) > 1:
            streams = generate_streams(engine, prompts, count, stop=ends, speculative=speculative)
            tell_streams(engine, folder, streams.streams, streams.decode_s, seat)
            return
        made, words = _one(engine, prompts[0], count, ends, sampling, speculative, tokenizer, seat)
    tell(engine, folder, made, None if tokenizer is None else words, seat)


def _one(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    stop: Collection[int],
    sampling: SpecSampling | None,
    speculative: bool,
    tokenizer: Tokenizer | None,
    seat: Seat | None,
) -> tuple[Generated, str]:
    """One stream and its text, printed as it comes, by the first process alone."""
    reader = None if tokenizer is None else tokenizer.stream()
    pieces: list[str] = []
    speaks = seat is None or seat.rank == 0

    def take(piece: str) -> None:
        pieces.append(piece)
        if speaks:
            show_piece(piece)

    def show(token: int) -> None:
        gap = " " if pieces else ""
        take(f"{gap}{token}" if reader is None else reader.feed(token))

    make = generate_spec if speculative else generate
    made = make(engine, prompt, count, stop=stop, sampling=sampling, on_token=show)
    if reader is not None:
        take(reader.end())
    return made, "".join(pieces)
