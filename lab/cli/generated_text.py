"""What `dsv4-lab generate` says about what it made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dsv4.distributed.joining import Seat
from dsv4.engine.engine import Engine
from lab.cli import text
from lab.cli.settings import current
from lab.generation import Generated
from lab.record.environment import capture


def _about(engine: Engine, folder: Path, seat: Seat | None) -> dict[str, Any]:
    """What documents of one stream and of several say alike."""
    return {
        "model": str(folder),
        "env": capture(engine.last.device),
        "stages": len(engine.placement.stages),
        "cards": engine.cards,
        "rank": None if seat is None else seat.rank,
        "placed_bytes": sum(s.size_bytes for s in engine.placement.stages),
        "arms": engine.arms.to_json(),
        "device": engine.last.device.name,
    }


def tell(
    engine: Engine, folder: Path, made: Generated, words: str | None, seat: Seat | None
) -> None:
    """Print how one stream was made, or its document; its tokens are printed already.

    words: its text, where the prompt was text.
    """
    if current().json:
        text.emit_json(
            "generate", **_about(engine, folder, seat),
            prompt=made.prompt, tokens=made.tokens, stopped=made.stopped, text=words,
            prefill_s=made.prefill_s, decode_s=made.decode_s, tokens_per_s=made.tokens_per_s,
            step_s=made.step_s, rounds=None if made.run is None else len(made.run.rounds),
        )  # fmt: skip
        return
    if seat is None or seat.rank == 0:
        click.echo()
    if made.run is not None:
        text.note(f"{len(made.run.rounds)} rounds, {made.run.tokens_per_round:.2f} tokens a round")
    held = "" if seat is None else f", stage {seat.rank} of {seat.world}"
    text.note(
        f"{len(made.prompt)} tokens of prompt in {made.prefill_s:.2f} s,"
        f" {len(made.tokens)} generated, {made.tokens_per_s:.2f} tokens/s"
        f" on {engine.last.device.name}{held}"
    )


def tell_streams(
    engine: Engine,
    folder: Path,
    streams: Sequence[Sequence[int]],
    decode_s: float,
    seat: Seat | None,
) -> None:
    """Print several streams, by the first process alone, or their document."""
    count = sum(len(s) for s in streams)
    if current().json:
        text.emit_json(
            "generate", **_about(engine, folder, seat), streams=streams, decode_s=decode_s,
            tokens_per_s=count / decode_s,
        )  # fmt: skip
        return
    if seat is None or seat.rank == 0:
        for tokens in streams:
            click.echo(" ".join(map(str, tokens)))
    text.note(
        f"{count} tokens of {len(streams)} streams in {decode_s:.2f} s with their prompts,"
        f" {count / decode_s:.2f} tokens/s on {engine.last.device.name}"
    )
