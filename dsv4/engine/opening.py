"""Opens a model: arms, placement, room, then the weights stage by stage, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4.checkpoint.census import Census
from dsv4.engine.arms import Arms
from dsv4.engine.joins import new_joins
from dsv4.engine.links import Links
from dsv4.engine.loading import Loader, rope_tables
from dsv4.engine.peers import probe_peers
from dsv4.engine.placement import Placement, demand_room, plan_placement, rope_positions
from dsv4.engine.shares import Share, SharedSource
from dsv4.engine.source import WeightSource
from dsv4.engine.weights import DsparkWeights, MtpWeights, Stage, size_bytes
from dsv4.errors import DeviceError, Refusal
from dsv4.runtime.device import Device

DEFAULT_POSITIONS = 8192


@dataclass(frozen=True, slots=True)
class Opened:
    """The weights of a model on their stages. tail: which blocks it has behind its trunk."""

    stages: tuple[Stage, ...]
    placement: Placement
    mtp: MtpWeights | None
    dspark: DsparkWeights | None
    tail: str


def open_model(
    source: WeightSource,
    devices: Sequence[Device],
    arms: Arms,
    *,
    max_seq: int,
    progress: Callable[[int], None] = lambda size_bytes: None,
    links: Links | None = None,
) -> Opened:
    """The model of a source on these devices, a stage each, or a rank under DSV4_PARALLEL=tensor.

    links: the only device holds the one stage of this process among those of others.
    progress is called with the bytes of each part that has arrived.
    Errors: Refusal before the first upload for everything that headers show, or naming a tensor
    whose values cannot be; DeviceError when a device gives up. Nothing stays loaded then.
    """
    tail = tail_of(source.census, arms, source.where)
    if links is not None:
        demand_one_process(arms)
    if links is None:
        numbers = {id(d): n for n, d in enumerate(dict.fromkeys(devices))}
        order = [numbers[id(d)] for d in devices]
    else:
        order, numbers = list(range(links.world)), {id(devices[0]): links.rank}
    placement = plan_placement(source.census, arms, devices=order, max_seq=max_seq, tail=tail)
    free = {numbers[id(d)]: d.memory_bytes()[0] for d in devices}
    demand_room(placement, free, source.where)
    probe_peers(devices)
    joins = new_joins(devices) if arms.parallel == "tensor" else None
    stages: list[Stage] = []
    try:
        tables = rope_tables(source.census.config, rope_positions(source.census.config, max_seq))
        mtp, dspark = None, None
        first = 0 if links is None else links.rank
        for index, device in enumerate(devices, first):
            share = Share(index, len(devices)) if arms.parallel == "tensor" else Share(0, 1)
            held = source if share.world == 1 else SharedSource(source, share)
            stages.append(_load_stage(held, arms, placement, index, device, tables, progress))
            stages[-1].links, stages[-1].share, stages[-1].joins = links, share, joins
        loader = Loader(source, stages[-1].device, arms.dense_fp8)
        drafting = tail if stages[-1].exit is not None else "off"
        if drafting != "off" and stages[0].embed is None:
            # Drafts are embedded where they are made, not a process away.
            stages[-1].embed = loader.stored("embed.weight")
            stages[-1].loaded_bytes += size_bytes(stages[-1].embed)
        if drafting == "mtp":
            mtp = loader.mtp()
        elif drafting == "dspark":
            dspark = loader.dspark()
        tail_bytes = size_bytes((mtp, dspark))
        stages[-1].loaded_bytes += tail_bytes
        progress(tail_bytes)
        for device in devices:
            device.synchronize()
    except MemoryError as error:
        stages.clear()
        raise DeviceError(
            f"{source.where} was being loaded\n  a device ran out of memory: {error}\n"
            + "".join(f"  {line}\n" for line in placement.table(free).splitlines())
            + "  everything was freed; use more devices or a smaller max_seq"
        ) from error
    except BaseException:
        # The caller keeps no half of a model; arrays go with the last name for them.
        stages.clear()
        raise
    return Opened(tuple(stages), placement, mtp, dspark, tail)


def demand_one_process(arms: Arms) -> None:
    """Nothing, if the arms allow several processes. Errors: Refusal."""
    if arms.parallel == "tensor":
        raise Refusal(
            "DSV4_PARALLEL=tensor was asked for with --world\n"
            "  its ranks are devices of one process, which write into each other's memory\n"
            "  in dsv4.engine.opening\n  start one process with --devices 0,1, or use layers"
        )


def tail_of(census: Census, arms: Arms, where: str) -> str:
    """Which blocks behind the trunk are loaded: "off", "mtp" or "dspark".

    A next-token block loads by itself where there is one; a drafter only on request.
    Ranks that share layers have none. Errors: Refusal when the arms ask for a tail that is not
    stored.
    """
    lineage = {"none": "off", "nextn": "mtp", "dspark": "dspark"}[census.layout.lineage]
    if arms.drafter not in ("off", lineage):
        raise Refusal(
            f"DSV4_DRAFTER={arms.drafter} was asked for\n"
            f"  {where} has {'no blocks behind its trunk' if lineage == 'off' else lineage}\n"
            "  by its headers\n  unset DSV4_DRAFTER, or open another release"
        )
    if lineage == "mtp" and arms.parallel != "tensor":
        return "mtp"
    return arms.drafter


def _load_stage(
    source: WeightSource,
    arms: Arms,
    placement: Placement,
    index: int,
    device: Device,
    tables: tuple[Any, Any],
    progress: Callable[[int], None],
) -> Stage:
    loader = Loader(source, device, arms.dense_fp8)
    first, end = placement.stages[index].layers
    last = end == source.census.config.n_layers
    embed = loader.stored("embed.weight") if first == 0 else None
    layers = []
    for number in range(first, end):
        layers.append(loader.layer(number))
        progress(size_bytes(layers[-1]))
    stage = Stage(
        # Ranks all are the one stage, which begins with the tokens.
        index=index if first else 0,
        device=device,
        layers=tuple(layers),
        embed=embed,
        head=loader.stored("head.weight") if last else None,
        exit=loader.exit("") if last else None,
        rope_plain=device.to_device(tables[0]),
        rope_yarn=device.to_device(tables[1]),
    )
    parts = (stage.layers, stage.embed, stage.head, stage.exit, stage.rope_plain, stage.rope_yarn)
    stage.loaded_bytes = size_bytes(parts)
    return stage
