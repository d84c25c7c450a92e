"""A prompt through the layers, in pieces of a fixed number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.block import run_block
from dsv4.engine.capture import Capture, ForwardOut
from dsv4.engine.rows import Rows, look_at_nothing
from dsv4.engine.state import DecodeState, new_layer_cache
from dsv4.engine.tape import Tape
from dsv4.engine.trunk import logits, run_trunk
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
            held[first : first + len(piece)] = streams
        ends = first + len(piece) == len(ids)
        if ends:
            held[-1:] = streams[-1:]
        if ends or see_logits is not None:
            spoken = streams[-1:] if see_logits is None else streams
            made = None
            if last.exit is not None:
                made = logits(runs[-1], last.exit, spoken, last.head)
            values = engine.fetch(made)()
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
) -> Any:
    """The streams of some rows at once, or None when the pass was to end before."""
    positions = state.pos + runs[0].rows

    def after(run: Rows, layer: int, streams: Any) -> bool:
        if capture is not None:
            capture.keep_blocks(run, layer, state.caches[layer], positions)
        watch(run, layer, streams)
        return layer != end_after

    if capture is None:
        return run_trunk(runs, state.caches, after)
    return run_trunk(runs, state.caches, after, capture.look)


def eager_rows(engine: Engine, ids: np.ndarray, start: int, *, library: bool) -> list[Rows]:
    """The rows of these ids as every stage sees them; launches run at once."""
    runs = []
    for stage, space, control in zip(engine.stages, engine.spaces, engine.controls, strict=True):
        stage.device.write(control[:1], np.array([start], np.int32))
        stage.device.write(control[1 : 1 + len(ids)], ids)
        runs.append(
            Rows(
                config=engine.config,
                arms=engine.arms,
                stage=stage,
                tape=Tape(stage.device, keep=False, profile=engine.arms.profile),
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
    run = eager_rows(engine, np.zeros(1, np.int32), 0, library=False)[-1]
    return np.asarray(last.device.to_numpy(logits(run, last.exit, streams, last.head))[0])


def layer_of_streams(
    engine: Engine, layer: int, streams: np.ndarray, ids: np.ndarray, capture: Capture
) -> Any:
    """The streams [T,M,D] after one layer alone, from given streams of positions 0..."""
    stage = engine.stages[engine.layer_stage[layer]]
    w = stage.layers[layer - stage.layers[0].layer]
    chunk, c = engine.arms.prefill_chunk, engine.config
    cache = new_layer_cache(stage.device, c, w.ratio, engine.max_seq, chunk)
    rows = []
    for first in range(0, len(ids), chunk):
        piece = slice(first, first + chunk)
        library = engine.arms.prefill_gemm == "library"
        run = eager_rows(engine, ids[piece], first, library=library)[stage.index]
        own = run.buffer("streams", c.hc_mult, c.dim)
        stage.device.write(own, streams[piece].astype(np.float32))
        run = replace(run, look=capture.look(run, layer))
        rows.append(stage.device.to_numpy(run_block(run, w, cache, own)))
        capture.keep_blocks(run, layer, cache, first + run.rows)
    return np.concatenate(rows)
