"""What the head says about streams, wherever it is: on the last stage, or a part on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4.engine.rows import Rows
from dsv4.engine.trunk import greedy, greedy_part, logits
from dsv4.kernels.argmax import argmax
from dsv4.kernels.movement import movement_place
from dsv4.spec import F32, I32


def spoken(runs: Sequence[Rows], ends: Sequence[Any], kind: str) -> Any:
    """Logits [T,V] ("logits") or tokens [T] ("greedy") on the last stage or rank.

    runs: the rows where the head's launches go. ends: streams [T,M,D] of the last stage, or of
    every rank. None where another process has the head.
    """
    run = runs[-1]
    if run.stage.exit is None:
        return None
    if run.stage.joins is None:
        make = logits if kind == "logits" else greedy
        return make(run, run.stage.exit, ends[-1], run.stage.head)
    if kind == "logits":
        return _gathered(runs, ends)
    if run.arms.dots_f32:
        return _best(runs, ends)
    made = _gathered(runs, ends)
    chosen = run.workspace.rows_of("chosen", int(made.shape[0]), fmt=I32)
    run.tape.launch(argmax, made, out=chosen)
    return chosen


def _gathered(runs: Sequence[Rows], ends: Sequence[Any]) -> Any:
    """The logits of all ranks side by side, on the last one."""
    last = runs[-1]
    parts = []
    for run, streams in zip(runs, ends, strict=True):
        assert run.stage.exit is not None, "every rank has an exit"
        parts.append(logits(run, run.stage.exit, streams, run.stage.head))
    rows, width = (int(n) for n in parts[-1].shape)
    made = last.workspace.rows_of("all logits", rows, width * len(parts), fmt=F32)
    with last.phase("head"):
        for rank, (run, part) in enumerate(zip(runs, parts, strict=True)):
            if run is not last:
                arrived = last.workspace.rows_of(f"logits {rank}", rows, width, fmt=F32)
                last.tape.receive(arrived, part, run.stage.device)
                part = arrived
            last.tape.launch(movement_place, part, made, offset=rank * width)
    return made


def _best(runs: Sequence[Rows], ends: Sequence[Any]) -> Any:
    """The tokens that are largest among all ranks, on each of them."""
    for run, streams in zip(runs, ends, strict=True):
        stage = run.stage
        assert stage.exit is not None and stage.joins is not None, "every rank has an exit"
        ids, logit = greedy_part(run, stage.exit, streams, stage.head)
        chosen = run.workspace.rows_of("chosen of all", int(ids.shape[0]), fmt=I32)
        with run.phase("head"):
            stage.joins.best(run.tape, stage.share.rank, logit, ids, run.config.vocab_size, chosen)
    return chosen
