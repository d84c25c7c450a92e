"""A process takes its stage of a model, and lets go of the others when it is done or has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.checkpoint.mint import MintPlan
from dsv4.distributed.facts import run_facts
from dsv4.distributed.frames import Kind
from dsv4.distributed.links import StageLinks, probe_links
from dsv4.distributed.mesh import Mesh
from dsv4.distributed.nccl import cupy_library, open_nccl
from dsv4.distributed.rendezvous import Address, join_mesh
from dsv4.distributed.sockets import SocketTransport
from dsv4.distributed.transport import Transport
from dsv4.engine.arms import Arms
from dsv4.engine.checks import longest_sequence
from dsv4.engine.engine import Engine
from dsv4.engine.opening import demand_one_process, tail_of
from dsv4.engine.placement import plan_placement
from dsv4.engine.source import WeightSource, open_source
from dsv4.errors import Refusal
from dsv4.runtime.device import Device, open_device

TRANSPORTS: Final = ("auto", "sockets", "nccl")


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a process in a run.

    transport: "sockets", "nccl", or "auto" for what fits the device. peer_timeout_s: how long a
    message may take once all have loaded; load_timeout_s: until all are there, and until all have
    loaded.
    """

    rank: int
    world: int
    address: Address
    transport: str = "auto"
    peer_timeout_s: float = 120.0
    load_timeout_s: float = 1800.0


@contextlib.contextmanager
def join_stages(
    model: Path | str | MintPlan | WeightSource,
    seat: Seat,
    *,
    arms: Arms,
    device: int | Device = 0,
    backend: str = "auto",
    max_seq: int | None = None,
    request: Mapping[str, Any],
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> Iterator[Engine]:
    """An engine with this process's stage, while all processes run the `with` in the same way.

    request: what will be made, which every rank must have been told alike. When what runs inside
    fails, the others are told. Errors: PeerError for the other processes; as `Engine.load`.
    """
    source = open_source(model)
    longest = longest_sequence(source.census.config, max_seq, source.where)
    place = open_device(backend, index=device) if isinstance(device, int) else device
    _check(source, arms, seat, longest)
    facts = run_facts(source, arms, max_seq=longest, backend=place.backend, request=request)
    facts["transport"] = _transport_name(seat, place)
    mesh = join_mesh(
        seat.rank, seat.world, seat.address, facts,
        timeout_s=seat.peer_timeout_s, join_timeout_s=seat.load_timeout_s,
    )  # fmt: skip
    transport: Transport | None = None
    try:
        transport = _open_transport(facts["transport"], mesh, place, seat.load_timeout_s)
        links = StageLinks(mesh, transport)
        engine = Engine.load(
            source, (place,), max_seq=longest, arms=arms, links=links, progress=progress
        )
        mesh.broadcast(Kind.READY, b"")
        mesh.gather(Kind.READY, timeout_s=seat.load_timeout_s)
        probe_links(links, place)
        yield engine
        transport.crossing()()
    except BaseException as error:
        mesh.abort(error)
        raise
    else:
        mesh.leave()
    finally:
        if transport is not None:
            transport.close()


def _check(source: WeightSource, arms: Arms, seat: Seat, max_seq: int) -> None:
    """Nothing, if the model can be cut into so many stages. Errors: Refusal."""
    demand_one_process(arms)
    tail = tail_of(source.census, arms, source.where)
    plan_placement(source.census, arms, devices=range(seat.world), max_seq=max_seq, tail=tail)
    if seat.world > source.census.config.n_layers:
        raise Refusal(
            f"{seat.world} ranks were asked for\n"
            f"  the model has {source.census.config.n_layers} layers\n  in {source.where}\n"
            "  start fewer processes"
        )


def _transport_name(seat: Seat, device: Device) -> str:
    if seat.transport == "auto":
        return "nccl" if device.backend == "cuda" else "sockets"
    if seat.transport == "nccl" and device.backend != "cuda":
        raise Refusal(
            f"--transport nccl was asked for on {device.name}\n  NCCL moves GPU memory\n"
            "  in dsv4.distributed\n  use --transport sockets, or --backend cuda"
        )
    return seat.transport


def _open_transport(name: str, mesh: Mesh, device: Device, timeout_s: float) -> Transport:
    if name == "sockets":
        return SocketTransport(mesh)
    return open_nccl(mesh, cupy_library(device), timeout_s=timeout_s)
