"""Rounds of a target that are recorded once and replayed at any position."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.drafters.quant import bf16_to_f32
from dsv4.runtime.device import Device, Graph
from dsv4.targets.layers import Held
from dsv4.targets.protocol import TapSink

if TYPE_CHECKING:
    from dsv4.targets.cache import TargetCache
    from dsv4.targets.qwen3 import QwenTarget
    from dsv4.targets.qwen_hybrid import ScanInputs


@dataclass(frozen=True, slots=True)
class Places:
    """Tokens of some rows, their positions, and the ends of what each row sees: i32 [T] each.

    embedded: where their embedding rows lie, f32 [T,D], when the table is on the host.
    """

    ids: Any
    positions: Any
    ends: Any
    embedded: Any = None

    def move(self, device: Device, ids: Any, start: int, table: np.ndarray | None) -> None:
        """Take these tokens, numbers or an array of the device, at positions start.. on."""
        if isinstance(ids, device.xp.ndarray):
            self.ids[...] = ids
        else:
            device.write(self.ids, np.asarray(ids, np.int32))
        if table is not None:
            device.write(self.embedded, rows_of(table, device, ids))
        positions = np.arange(start, start + len(self.ids), dtype=np.int32)
        device.write(self.positions, positions)
        device.write(self.ends, positions + np.int32(1))


def rows_of(table: np.ndarray, device: Device, ids: Any) -> np.ndarray:
    """Rows of a bf16 table on the host, as float32 numbers. [T,D]."""
    on_device = isinstance(ids, device.xp.ndarray)
    return bf16_to_f32(table[device.to_numpy(ids) if on_device else np.asarray(ids)])


@dataclass(slots=True)
class RoundGraph:
    """A round of some rows on one cache, with everything that it reads and writes.

    The first run launches, so that every kernel is loaded; the second is recorded, and it and all
    later ones are replayed. What it gives is overwritten by the next run: the checkpoint of a round
    lies in these arrays until then.
    """

    places: Places
    taps: TapSink | None
    held: Held = field(default_factory=Held)
    graph: Graph | None = None
    out: tuple[Any, dict[int, ScanInputs]] | None = None


def replay_round(
    target: QwenTarget, cache: TargetCache, ids: Any, want: str
) -> tuple[Any, dict[int, ScanInputs]]:
    """A copy of what a round says, its taps in the cache's sink, and what a checkpoint keeps.

    Rounds are told apart by their rows, by the states that they read, by their taps, and by what
    they say.
    """
    sink, device = cache.tap_sink, target.ops.device
    layers = () if sink is None else sink.layer_ids
    key = (len(ids), cache.side, want, layers)
    if key not in cache.graphs:
        taps = None
        if sink is not None:
            buf = target.tap_buffer(len(ids), len(layers) * sink.hidden)
            taps = TapSink(layers, buf, sink.hidden, len(ids))
        cache.graphs[key] = RoundGraph(target.places(len(ids)), taps)
    round_ = cache.graphs[key]
    round_.places.move(device, ids, cache.pos, target.host_table)
    launching = replace(target, ops=replace(target.ops, held=round_.held))

    def launch() -> None:
        round_.held.rewind()
        final, scans = launching.run_rows(round_.places, cache, round_.taps)
        round_.out = launching.said(final, want), scans

    if round_.graph is None and round_.out is not None:
        with device.capture() as graph:
            launch()
        round_.graph = graph
    if round_.graph is None:
        launch()
    else:
        round_.graph.replay()
    assert round_.out is not None, "it was launched"
    if sink is not None and round_.taps is not None:
        sink.buf[sink.base : sink.base + len(ids)] = round_.taps.buf
    said, scans = round_.out
    return said.copy(), scans
