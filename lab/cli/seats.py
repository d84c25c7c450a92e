"""The options of a run over several processes, a stage each, and the engine of one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from dsv4.distributed.joining import TRANSPORTS, Seat, join_stages
from dsv4.distributed.rendezvous import parse_address
from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from lab.engine_steps import open_engine
from lab.minted import model_of

_OPTIONS = (
    click.option("--rank", type=click.IntRange(0), metavar="R",
                 help="Hold stage R of a model that other processes hold with this one."),
    click.option("--world", type=click.IntRange(2), metavar="N",
                 help="The number of processes; each is started with the same arguments."),
    click.option("--rendezvous", metavar="HOST:PORT",
                 help="Where rank 0 waits for the others."),
    click.option("--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True,
                 help="How streams go from process to process; auto takes nccl on GPUs."),
    click.option("--peer-timeout", type=click.FloatRange(0, min_open=True), default=120.0,
                 show_default=True, metavar="S",
                 help="Give up when a message takes longer than S seconds."),
    click.option("--load-timeout", type=click.FloatRange(0, min_open=True), default=1800.0,
                 show_default=True, metavar="S",
                 help="Give up when the others take longer than S seconds to come, or to load."),
)  # fmt: skip


def seat_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with --rank and what belongs to it, which it gets as one `seat`."""

    def seated(
        *,
        rank: int | None,
        world: int | None,
        rendezvous: str | None,
        transport: str,
        peer_timeout: float,
        load_timeout: float,
        **others: Any,
    ) -> Any:
        given = (rank, world, rendezvous)
        seat = None
        if any(g is not None for g in given):
            if rank is None or world is None or rendezvous is None:
                raise click.UsageError("give --rank, --world and --rendezvous, or none of them")
            seat = Seat(
                rank, world, parse_address(rendezvous), transport, peer_timeout, load_timeout
            )
        return command(seat=seat, **others)

    seated.__doc__, seated.__name__ = command.__doc__, command.__name__
    # Options that were put on the command already come along.
    seated.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Callable[..., Any] = seated
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@contextlib.contextmanager
def seated_engine(
    seat: Seat | None,
    folder: Path | str,
    devices: tuple[int, ...],
    backend: str,
    max_seq: int,
    switches: Mapping[str, str | None],
    request: Mapping[str, Any],
) -> Iterator[Engine]:
    """The engine of a folder: all of it, or the stage of this process while the others hold theirs.

    request: what is asked for, which all must be asked alike. Errors: as `open_engine`; PeerError.
    """
    if seat is None:
        yield open_engine(folder, devices, backend, max_seq, switches)
        return
    if len(devices) != 1:
        raise click.UsageError("a process with --rank has one stage: give --devices one number")
    with join_stages(
        model_of(folder), seat, arms=resolve_arms(**switches), device=devices[0],
        backend=backend, max_seq=max_seq, request=request,
    ) as engine:  # fmt: skip
        yield engine
