"""A prompt through the layers, in pieces of a fixed number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.block import run_block
from dsv4.engine.capture import Capture, ForwardOut
from dsv4.engine.heads import spoken
from dsv4.engine.lanes import flush
from dsv4.engine.rows import Look, Rows, look_at_nothing
from dsv4.engine.state import DecodeState, new_layer_cache
from dsv4.engine.tape import Tape
from dsv4.engine.trunk import run_ranks
from dsv4.spec import F32

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


Watch = Callable[[Rows, int, Any], None]
"""Called with the rows, a layer's number and the streams after it, which later work overwrites."""


def watch_nothing(run: Rows, layer: int, streams: Any) -> None:
    """The watch that takes nothing."""


SeeLogits = Callable[[int, np.ndarray], None]
"""Called with a position and logits [n,V] of the rows from it on, piece after piece."""


def prefill(
    engine: Engine,
    state: DecodeState,
    ids: np.ndarray,
    *,
    keep_states: bool,
    capture: Capture | None = None,
    end_after: int | None = None,
    watch: Watch = watch_nothing,
    see_logits: SeeLogits | None = None,
) -> ForwardOut | None:
    """The result of checked ids at the state's position, which moves on; None if ended early.

    see_logits: is shown the logits of every row, which are otherwise made of the last one alone.
    """
    c, last = engine.config, engine.last
    held = last.device.empty((len(ids) if keep_states else 1, c.hc_mult, c.dim), F32)
    row = np.empty(0, np.float32)
    for first in range(0, len(ids), engine.arms.prefill_chunk):
        piece = ids[first : first + engine.arms.prefill_chunk]
        runs = eager_rows(engine, piece, state.pos, library=engine.arms.prefill_gemm == "library")
        streams = run_piece(engine, state, runs, capture, end_after, watch)
        engine.settle()
        state.pos += len(piece)
        if streams is None:
            continue
        if keep_states:
            last.device.receive(held[first : first + len(piece)], streams[-1], last.device)
        ends = first + len(piece) == len(ids)
        if ends:
            last.device.receive(held[-1:], streams[-1][-1:], last.device)
        if ends or see_logits is not None:
            heard = [s[-1:] if see_logits is None else s for s in streams]
            values = engine.fetch(spoken_at_once(runs, heard, "logits"))()
            row = values[-1]
            if see_logits is not None:
                see_logits(state.pos - len(piece), values)
    if end_after is not None:
        for stage in engine.stages:
            stage.device.synchronize()
        return None
    return ForwardOut(row, held)


def run_piece(
    engine: Engine,
    state: DecodeState,
    runs: list[Rows],
    capture: Capture | None,
    end_after: int | None = None,
    watch: Watch = watch_nothing,
) -> tuple[Any, ...] | None:
    """The streams of some rows at once, of the last stage or of each rank.

    None when the pass was to end before.
    """
    positions = state.pos + runs[0].rows

    def after(run: Rows, layer: int, streams: Any) -> bool:
        if run.stage.share.speaks:
            if capture is not None:
                capture.keep_blocks(run, layer, state.caches[-1][layer], positions)
            watch(run, layer, streams)
        return layer != end_after

    def look_of(run: Rows, layer: int) -> Look:
        seen = capture is not None and run.stage.share.speaks
        return capture.look(run, layer) if capture is not None and seen else look_at_nothing

    ends = run_ranks(runs, state.caches, after, look_of)
    flush([run.tape for run in runs])
    return None if ends[-1] is None else ends


def spoken_at_once(runs: Sequence[Rows], ends: Sequence[Any], kind: str) -> Any:
    """`spoken` of rows whose launches run at once."""
    speaking = runs[-len(ends) :]
    made = spoken(speaking, ends, kind)
    flush([run.tape for run in speaking])
    return made


def eager_rows(engine: Engine, ids: np.ndarray, start: int, *, library: bool) -> list[Rows]:
    """The rows of these ids as every stage sees them; launches run at once.

    Those of ranks that meet are kept until `flush`, which sends them in an order that can meet.
    """
    runs = []
    for stage, space, control in zip(engine.stages, engine.spaces, engine.controls, strict=True):
        stage.device.write(control[:1], np.array([start], np.int32))
        stage.device.write(control[1 : 1 + len(ids)], ids)
        runs.append(
            Rows(
                config=stage.share.config(engine.config),
                arms=engine.arms,
                stage=stage,
                tape=Tape(stage.device, keep=stage.joins is not None, profile=engine.arms.profile),
                workspace=space,
                rows=len(ids),
                start=start,
                bound=bucket(start + len(ids), engine.max_seq),
                control=control,
                library=library,
                schedules={},
                look=look_at_nothing,
            )
        )
    return runs


def bucket(end: int, max_seq: int) -> int:
    """A bound of positions below `end` that takes few values: lists and scores get its size."""
    size = 256
    while size < end:
        size *= 2
    return min(size, max_seq)


def logits_of(engine: Engine, streams: Any) -> np.ndarray:
    """The trunk's logits [V] of one row of streams [1,M,D]."""
    last = engine.last
    assert last.exit is not None, "the last stage has the head"
    runs = eager_rows(engine, np.zeros(1, np.int32), 0, library=False)
    ends = [streams]
    if last.joins is not None:
        # All ranks hold the same; what the caller has is the last one's.
        ends = [s.device.to_device(last.device.to_numpy(streams)) for s in engine.stages]
    return np.asarray(last.device.to_numpy(spoken_at_once(runs, ends, "logits"))[0])


def layer_of_streams(
    engine: Engine, layer: int, streams: np.ndarray, ids: np.ndarray, capture: Capture
) -> Any:
    """The streams [T,M,D] after one layer alone, from given streams of positions 0..."""
    where = engine.layer_stage[layer]
    holders = engine.stages if engine.last.joins is not None else engine.stages[where : where + 1]
    chunk, c, keys = engine.arms.prefill_chunk, engine.config, engine.arms.index_format
    ratio = c.compress_ratios[layer]
    caches = [new_layer_cache(s.device, c, ratio, engine.max_seq, chunk, keys) for s in holders]
    rows = []
    for first in range(0, len(ids), chunk):
        piece = slice(first, first + chunk)
        library = engine.arms.prefill_gemm == "library"
        every = eager_rows(engine, ids[piece], first, library=library)
        runs = [run for run in every if run.stage in holders]
        for run, cache in zip(runs, caches, strict=True):
            own = run.buffer("streams", c.hc_mult, c.dim)
            run.stage.device.write(own, streams[piece].astype(np.float32))
            if run.stage.share.speaks:
                run = replace(run, look=capture.look(run, layer))
            layers = run.stage.layers
            made = run_block(run, layers[layer - layers[0].layer], cache, own)
            if run.stage.share.speaks:
                capture.keep_blocks(run, layer, cache, first + run.rows)
        flush([run.tape for run in runs])
        rows.append(runs[-1].stage.device.to_numpy(made))
    return np.concatenate(rows)
