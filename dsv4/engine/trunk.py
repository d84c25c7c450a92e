"""The whole trunk on some rows, through all stages, and the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsv4.engine.block import run_chained
from dsv4.engine.fused_front import place_rows
from dsv4.engine.rows import Look, Rows, look_at_nothing
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import enter_tokens, entry_streams, exit_rows
from dsv4.engine.weights import ExitWeights
from dsv4.kernels.argmax import argmax
from dsv4.kernels.lm_head import lm_head, lm_head_argmax, lm_head_f32
from dsv4.spec import F32, I32, I64

AfterLayer = Callable[[Rows, int, Any], bool]
"""Called with the rows, a layer's number and the streams after it; False ends the pass."""


def go_on(run: Rows, layer: int, streams: Any) -> bool:
    """The follower that lets every layer run."""
    return True


LookOf = Callable[[Rows, int], Look]
"""The look at the intermediates of a layer."""


def run_trunk(
    runs: Sequence[Rows],
    caches: Mapping[int, LayerCache],
    after: AfterLayer = go_on,
    look_of: LookOf = lambda run, layer: look_at_nothing,
) -> Any:
    """The streams [T,M,D] after the last layer, on the last stage; None when `after` ended it.

    runs: the same rows as each stage sees them. Stages of other processes are before or after.
    """
    streams: Any = None
    for number, run in enumerate(runs):
        c = run.config
        own = run.buffer("streams", c.hc_mult, c.dim)
        entered = None
        if run.fused:
            place_rows(run, caches)
        with run.phase("entry"):
            if number > 0:
                run.tape.receive(own, streams, runs[number - 1].stage.device)
            elif run.stage.index > 0:
                _cross(run, own, arriving=True)
            elif run.fused:
                first = run.stage.layers[0]
                entered = enter_tokens(run, first.attn_hyper, first.attn_norm, own)
            else:
                entry_streams(run, own)
            if run.stage.index == 0:
                look_of(run, -1)("embed_out", own)
        streams = own
        for w, following in zip(run.stage.layers, [*run.stage.layers[1:], None], strict=True):
            looking = replace(run, look=look_of(run, w.layer))
            entered = run_chained(
                looking, w, caches[w.layer], streams, entered=entered, following=following
            )
            if not after(run, w.layer, streams):
                return None
    if runs[-1].stage.exit is None:
        _cross(runs[-1], streams, arriving=False)
    return streams


def run_ranks(
    runs: Sequence[Rows],
    caches: Sequence[Mapping[int, LayerCache]],
    after: AfterLayer = go_on,
    look_of: LookOf = lambda run, layer: look_at_nothing,
) -> tuple[Any, ...]:
    """What `run_trunk` gives: of all stages together, or of each rank, which has every layer.

    caches: of all layers, or of each rank's. after, look_of: see every rank, and must end all of
    them at the same layer.
    """
    if runs[0].stage.joins is None:
        return (run_trunk(runs, caches[0], after, look_of),)
    return tuple(
        run_trunk((run,), own, after, look_of) for run, own in zip(runs, caches, strict=True)
    )


def _cross(run: Rows, streams: Any, *, arriving: bool) -> None:
    """Streams from the process with the stage before, or to the one with the stage after."""
    links, device = run.stage.links, run.stage.device
    assert links is not None, "a stage between others has links to them"
    move = links.receive if arriving else links.send
    with run.phase("entry" if arriving else "exit"):
        name = "receive" if arriving else "send"
        run.tape.cross(name, lambda: move(device, streams), int(streams.nbytes))


def head_input(run: Rows, exit: ExitWeights, streams: Any) -> tuple[Rows, Any]:
    """(rows for the head, its input [T,D]) from streams of any number of rows."""
    few = replace(run, rows=int(streams.shape[0]))
    with run.phase("head"):
        return few, exit_rows(few, exit, streams, few.buffer("head x", run.config.dim))


def logits(run: Rows, exit: ExitWeights, streams: Any, head: Any) -> Any:
    """Logits [T,V] of the streams [T,M,D]."""
    few, x = head_input(run, exit, streams)
    with run.phase("head"):
        out = few.buffer("logits", run.config.vocab_size, fmt=F32)
        run.tape.launch(lm_head_f32 if run.arms.dots_f32 else lm_head, x, head, out=out)
    return out


def greedy(run: Rows, exit: ExitWeights, streams: Any, head: Any) -> Any:
    """The token [T] with the largest logit of every row, ties to the lowest."""
    if not run.arms.dots_f32:
        made = logits(run, exit, streams, head)
        chosen = run.workspace.rows_of("chosen", int(streams.shape[0]), fmt=I32)
        run.tape.launch(argmax, made, out=chosen)
        return chosen
    return greedy_part(run, exit, streams, head)[0]


def greedy_part(run: Rows, exit: ExitWeights, streams: Any, head: Any) -> tuple[Any, Any]:
    """(place [T] of the largest logit in the rows of `head`, that logit [T]), sums in float32."""
    few, x = head_input(run, exit, streams)
    chosen, best = few.buffer("chosen", fmt=I32), few.buffer("best logit", fmt=F32)
    keys = run.workspace.filled("argmax keys", 0, run.workspace.rows, fmt=I64)[: few.rows]
    ticket = run.workspace.filled("argmax ticket", 0, 1, fmt=I32)
    with run.phase("head"):
        run.tape.launch(lm_head_argmax, x, head, keys=keys, ticket=ticket, ids=chosen, logit=best)
    return chosen, best
