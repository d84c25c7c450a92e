"""One draft: a block of rows through the drafter, then a chain of tokens, each given the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.attention import attend_and_project, cache_rows, queries
from dsv4.engine.block import run_block
from dsv4.engine.dspark import DsparkState, dspark_weights, main_stream, rows_of
from dsv4.engine.products import product_input
from dsv4.engine.replay import Replay
from dsv4.engine.rows import Rows
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import Mixing, close, entry_streams, exit_rows
from dsv4.engine.tape import Tape
from dsv4.engine.taps import check_taps
from dsv4.engine.weights import DsparkWeights, LayerWeights
from dsv4.errors import StateError
from dsv4.kernels.argmax import argmax
from dsv4.kernels.confidence import confidence
from dsv4.kernels.index_lists import index_lists_window
from dsv4.kernels.lm_head import lm_head, lm_head_f32
from dsv4.kernels.markov import markov_bias, markov_bias_f32
from dsv4.spec import F32, I32

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(slots=True)
class DsparkCapture:
    """Host copies of what a draft computed.

    main_hidden [n*D], main_x [D]: taps of the newest committed position, and the common input made
    of them. block_outs [B,M,D] by block. x_collapsed [B,D]: before the norm. logits_pre,
    logits_post [B,V]: without and with the bias of the token before. markov_embed [B,R]: its row.
    """

    main_hidden: np.ndarray | None = None
    main_x: np.ndarray | None = None
    block_outs: list[np.ndarray] = field(default_factory=list)
    x_collapsed: np.ndarray | None = None
    logits_pre: np.ndarray | None = None
    logits_post: np.ndarray | None = None
    markov_embed: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class DsparkProposal:
    """out_ids [B+1]: the input token, then a draft for each position after its own.

    confidence [B]: raw logits, larger is likelier to be accepted. top1_logits, margins [B]: the
    winning logit and its lead, only with a capture.
    """

    out_ids: np.ndarray
    confidence: np.ndarray
    margins: np.ndarray | None = None
    top1_logits: np.ndarray | None = None
    capture: DsparkCapture | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """A bound draft: what runs, and where its results lie."""

    replay: Replay
    chain: Any
    confidence: Any


def dspark_forward_spec(
    engine: Engine,
    dstate: DsparkState,
    input_token: int,
    tap_row: int,
    pos: int,
    capture: DsparkCapture | None = None,
) -> DsparkProposal:
    """Drafts after a token at position pos + 1; only the rings' draft rows are touched.

    tap_row: where the taps of pos lie, which only a capture reads: the rings have them already.
    Errors: StateError for a position that is not the last written one, a token outside the
    vocabulary, or a state that cannot be used.
    """
    w = dspark_weights(engine)
    dstate.check(engine, "a draft")
    check_taps(engine, dstate.taps, tap_row, 1, "a draft")
    if pos < 0 or pos != dstate.next - 1:
        raise StateError(
            f"a draft behind position {pos} was asked for\n"
            f"  the rings end at position {dstate.next - 1}\n  in Engine.dspark_forward_spec\n"
            "  write the rows of every committed position first, and draft behind the last"
        )
    engine.check_ids([input_token], 0, "a draft")
    _write_controls(engine, dstate, input_token, pos)
    if capture is None:
        if "draft" not in dstate.programs:
            dstate.programs["draft"] = _bind(engine, dstate, keep=True)
        draft: _Draft = dstate.programs["draft"]
        draft.replay.run()
    else:
        _capture_main(engine, dstate, tap_row, capture)
        draft = _bind(engine, dstate, keep=False, see=_keeper(engine, capture))
    device = engine.last.device
    ids, scores = device.to_numpy(draft.chain), device.to_numpy(draft.confidence)
    if capture is None:
        return DsparkProposal(ids, scores)
    assert capture.logits_post is not None
    rows = device.to_numpy(w.markov_w1[device.to_device(ids[:-1])])
    capture.markov_embed = (rows.astype(np.uint32) << 16).view(np.float32)
    top = np.sort(capture.logits_post, axis=1)[:, -2:]
    return DsparkProposal(ids, scores, top[:, 1] - top[:, 0], top[:, 1], capture)


See = Callable[[str, Any], None]
"""Called with the name of a captured part and its array."""


def _see_nothing(name: str, array: Any) -> None:
    """What a draft without a capture calls."""


def _keeper(engine: Engine, capture: DsparkCapture) -> See:
    def keep(name: str, array: Any) -> None:
        values = engine.last.device.to_numpy(array)
        if name == "block_outs":
            capture.block_outs.append(values)
        else:
            setattr(capture, name, values)

    return keep


def _capture_main(
    engine: Engine, dstate: DsparkState, tap_row: int, capture: DsparkCapture
) -> None:
    taps = dstate.taps.rows[tap_row : tap_row + 1]
    run = rows_of(engine, dstate, dstate.ring_control, 1, keep=False)
    stream = main_stream(run, dspark_weights(engine), taps)
    capture.main_hidden = engine.last.device.to_numpy(taps)[0]
    capture.main_x = engine.last.device.to_numpy(stream)[0]


def _write_controls(engine: Engine, dstate: DsparkState, token: int, pos: int) -> None:
    """One copy says all: first position, tokens, newest position for each row, the chain."""
    c = engine.config
    block = c.dspark_block_size
    ids = np.full(block, c.dspark_noise_token_id, np.int32)
    ids[0] = token
    start, newest = np.array([pos + 1], np.int32), np.full(block, pos, np.int32)
    chain = np.zeros(1 + block, np.int32)
    chain[0] = token
    engine.last.device.write(dstate.control, np.concatenate([start, ids, newest, chain]))
    if engine.stages[0] is not engine.last:
        first = engine.stages[0].device
        first.write(dstate.entry_control, np.concatenate([start, ids]))


def _bind(engine: Engine, dstate: DsparkState, *, keep: bool, see: See = _see_nothing) -> _Draft:
    w, block = dspark_weights(engine), engine.config.dspark_block_size
    control = dstate.control
    run = rows_of(engine, dstate, control[: 1 + block], block, keep=keep)
    tapes, streams = _entry(engine, dstate, run, keep=keep)
    newest = control[1 + block : 1 + 2 * block]
    for weights, ring in zip(w.blocks, dstate.rings, strict=True):
        run_block(run, weights, ring, streams, _attention_to(newest))
        see("block_outs", streams)
    single = engine.arms.dspark_head_f32
    head = replace(run, arms=replace(run.arms, dots_f32=single, chains_f32=single))
    chain = control[1 + 2 * block :]
    with run.phase("drafter head"):
        x = exit_rows(head, w.exit, streams, run.buffer("head x", run.config.dim))
        # The rows before their norm are still where the collapse put them.
        collapsed = run.buffer("collapsed", run.config.dim)
        see("x_collapsed", collapsed)
        logits = run.buffer("logits", run.config.vocab_size, fmt=F32)
        run.tape.launch(lm_head_f32 if single else lm_head, x, engine.last.head, out=logits)
        see("logits_pre", logits)
        _chain(run, w, logits, chain)
        see("logits_post", logits)
        scores = run.buffer("confidence", fmt=F32)
        run.tape.launch(confidence, collapsed, w.markov_w1, chain[:block], w.confidence, out=scores)
    return _Draft(Replay(engine, (*tapes, run.tape)), chain, scores)


def _entry(
    engine: Engine, dstate: DsparkState, run: Rows, *, keep: bool
) -> tuple[tuple[Tape, ...], Any]:
    """(tapes to run before, the streams of the token and the noise behind it)."""
    c, first = run.config, engine.stages[0]
    streams = run.buffer("streams", c.hc_mult, c.dim)
    if first is run.stage:
        with run.phase("drafter entry"):
            return (), entry_streams(run, streams)
    tape = Tape(first.device, keep=keep, profile=engine.arms.profile)
    there = replace(
        run, stage=first, tape=tape, workspace=dstate.entry_space, control=dstate.entry_control,
        schedules={},
    )  # fmt: skip
    with there.phase("drafter entry"):
        made = entry_streams(there, there.buffer("streams", c.hc_mult, c.dim))
    run.tape.receive(streams, made, first.device)
    return (tape,), streams


def _attention_to(newest: Any) -> Callable[..., Any]:
    """Attention of draft rows: all see the ring up to `newest`, and all draft rows."""

    def attend(
        run: Rows, w: LayerWeights, ring: LayerCache, x: Any, out: Any, mixing: Mixing
    ) -> Any:
        close(run, mixing)
        block, window = run.rows, ring.ring
        when = run.schedule(0, window, 1)
        with run.phase("queries"):
            given = product_input(run, "x", x)
        heads, _ = queries(run, w, given, when)
        behind = _draft_slots(run, window)
        with run.phase("keys"):
            cache_rows(run, w, ring.kvc, given, replace(when, ring_rows=behind))
        ids = run.buffer("draft ids", window + block, fmt=I32)
        counts = run.workspace.filled("draft counts", block, block, fmt=I32)
        with run.phase("lists"):
            run.tape.launch(
                index_lists_window, newest, counts, out=ids, window=window, ring=window, base=window
            )
        return attend_and_project(run, w, ring, heads, ids, when, out)

    return attend


def _draft_slots(run: Rows, window: int) -> Any:
    """The rows of a ring behind its window, i32 [B]."""
    key = "draft slots"
    if key not in run.workspace.buffers:
        slots = window + np.arange(run.rows, dtype=np.int32)
        run.workspace.buffers[key] = run.stage.device.to_device(slots)
    return run.workspace.buffers[key]


def _chain(run: Rows, w: DsparkWeights, logits: Any, chain: Any) -> None:
    """Each row biased by the token chosen before it, and its own choice, row after row."""
    bias = markov_bias_f32 if run.arms.dspark_head_f32 else markov_bias
    device = run.stage.device
    for i in range(run.rows):
        row = logits[i : i + 1]
        run.tape.launch(bias, w.markov_w1, w.markov_w2, chain[i : i + 1], row)
        if run.arms.dspark_chain == "device":
            run.tape.launch(argmax, row, out=chain[i + 1 : i + 2])
            continue
        picked = run.workspace.fixed("picked", 1, fmt=I32)
        run.tape.launch(argmax, row, out=picked)

        def carry(after: Any = chain[i + 1 : i + 2], picked: Any = picked) -> None:
            device.write(after, device.to_numpy(picked))

        run.tape.call("host chain", carry)
