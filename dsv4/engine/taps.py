"""What a drafter reads of the trunk: the streams after some layers, averaged or whole, by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsv4.engine.prefill import Watch
from dsv4.engine.rows import Rows
from dsv4.engine.trunk import AfterLayer
from dsv4.errors import StateError
from dsv4.kernels.movement import movement_mean, movement_place
from dsv4.spec import F32

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """rows [R,W] on the last stage: row r holds what some row of a step or a round left.

    averaged: W = n*D, the mean over the streams after each of n layers, side by side; otherwise
    W = M*D, all streams after one layer.
    """

    engine: object
    layers: tuple[int, ...]
    averaged: bool
    rows: Any

    @property
    def count(self) -> int:
        """R."""
        return int(self.rows.shape[0])


def new_taps(engine: Engine, layers: tuple[int, ...], count: int, *, averaged: bool) -> Taps:
    """Taps of `count` rows, all zero."""
    c = engine.config
    width = c.dim * (len(layers) if averaged else c.hc_mult)
    rows = engine.last.device.zeros((count, width), F32)
    return Taps(engine, layers, averaged, rows)


def check_taps(engine: object, taps: Taps, first: int, rows: int, asked: str) -> None:
    """Nothing, if rows first.. can be tapped. Errors: StateError."""
    if taps.engine is not engine:
        raise StateError(
            f"{asked} was asked for with another engine's taps\n"
            "  they tap other layers, on another device\n  in dsv4.engine.taps\n"
            "  use the taps of a state that this engine allocated"
        )
    if not 0 <= first <= taps.count - rows:
        raise StateError(
            f"{asked} was asked to tap rows {first}..{first + rows - 1}\n"
            f"  the taps have {taps.count} rows\n  in dsv4.engine.taps\n"
            "  tap fewer rows, or allocate wider taps"
        )


def tapping(taps: Taps, first: int = 0) -> AfterLayer:
    """What a trunk runs after each layer so that its rows fill rows first.. of the taps."""

    def after(run: Rows, layer: int, streams: Any) -> bool:
        if layer in taps.layers and run.stage.share.speaks:
            record(run, taps, layer, streams, taps.rows[first : first + run.rows])
        return True

    return after


def watching(taps: Taps, held: Any, end: int) -> Watch:
    """What a prompt of `end` tokens runs after each layer so that `held` [n,W] has its last n rows.

    Only for prompts whose positions the host knows.
    """
    begin = end - int(held.shape[0])

    def watch(run: Rows, layer: int, streams: Any) -> None:
        assert run.start is not None, "a prompt's positions are known"
        first, last = max(begin, run.start), run.start + run.rows
        if layer in taps.layers and first < last:
            few = replace(run, rows=last - first)
            part = streams[first - run.start :]
            record(few, taps, layer, part, held[first - begin : last - begin])

    return watch


def record(run: Rows, taps: Taps, layer: int, streams: Any, into: Any) -> None:
    """The streams [T,M,D] after a layer into its columns of rows [T,W]."""
    dim = run.config.dim
    with run.phase("taps"):
        if not taps.averaged:
            run.tape.launch(movement_place, streams.reshape(run.rows, -1), into, offset=0)
            return
        mean = run.buffer("tap", dim)
        run.tape.launch(movement_mean, streams, out=mean)
        run.tape.launch(movement_place, mean, into, offset=dim * taps.layers.index(layer))
