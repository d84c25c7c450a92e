"""Drafting with the next-token block: one draft a round, from the trunk's own streams.

A row joins the streams of a committed position with the token after it, so the row of the newest
position waits until that token is decided. Its draft speaks about the token behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.capture import ForwardOut
from dsv4.engine.decode import send_control
from dsv4.engine.dspark import prefill_tapped
from dsv4.engine.mtp import run_mtp
from dsv4.engine.replay import Replay
from dsv4.engine.rows import Rows, look_at_nothing
from dsv4.engine.state import DecodeState, LayerCache, new_control, new_layer_cache
from dsv4.engine.tape import Tape, Workspace
from dsv4.engine.taps import Taps, check_taps, new_taps
from dsv4.engine.trunk import greedy
from dsv4.engine.weights import MtpWeights
from dsv4.errors import StateError

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(slots=True, eq=False)
class MtpState:
    """The block's memory of a sequence.

    taps: streams of the rows that the block has not seen yet. following: the tokens after them,
    but for the newest one's. next: the position of the first of them. last: position, token and
    draft of the last call, which may be asked again.
    """

    engine: object
    taps: Taps
    cache: LayerCache
    workspaces: tuple[Workspace, ...]
    control: tuple[Any, ...]
    next: int = 0
    following: tuple[int, ...] = ()
    last: tuple[int, int, int] = (-1, -1, -1)
    programs: dict[int, tuple[Replay, Any]] = field(default_factory=dict)


def mtp_alloc_state(engine: Engine) -> MtpState:
    """An empty memory for one sequence. Errors: StateError without a next-token block."""
    _weights(engine)
    c, last = engine.config, engine.last
    return MtpState(
        engine,
        new_taps(engine, (c.n_layers - 1,), VERIFY_ROWS, averaged=False),
        new_layer_cache(last.device, c, 0, engine.max_seq, VERIFY_ROWS),
        tuple(Workspace(s.device, VERIFY_ROWS) for s in engine.stages),
        tuple(new_control(s.device, VERIFY_ROWS) for s in engine.stages),
    )


def mtp_prefill_prime(engine: Engine, ids: Any, state: DecodeState, mstate: MtpState) -> ForwardOut:
    """`prefill_with_cache` of a whole prompt that fills the block's ring as well.

    Only a window of it: what comes before, no later row sees. Errors: as there, and StateError for
    states that have seen something.
    """
    _check(engine, mstate, "a prime")
    if mstate.next:
        raise StateError(
            f"a prime was asked for\n  the block has seen {mstate.next} positions\n"
            "  in Engine.mtp_prefill_prime\n  prime a new state, once"
        )
    out, held = prefill_tapped(engine, ids, state, mstate.taps)
    count, end = int(held.shape[0]), state.pos
    mstate.next = end - count
    following = [int(t) for t in ids[end - count + 1 :]]
    for first in range(0, count - 1, mstate.taps.count):
        tokens = following[first : first + mstate.taps.count]
        with engine.last.device.active():
            mstate.taps.rows[: len(tokens)] = held[first : first + len(tokens)]
        _run(engine, mstate, tokens)
    with engine.last.device.active():
        mstate.taps.rows[:1] = held[-1:]
    return out


def mtp_accept(engine: Engine, mstate: MtpState, tokens: Sequence[int], pos: int) -> None:
    """Take over committed tokens of positions pos.., whose streams lie in the first taps.

    Errors: StateError for a position that is not the next one, or more tokens than taps.
    """
    _check(engine, mstate, "a token")
    check_taps(engine, mstate.taps, 0, len(tokens), "a token")
    if pos != mstate.next or not tokens or mstate.following:
        raise StateError(
            f"{len(tokens)} tokens from position {pos} were given to the next-token block\n"
            f"  position {mstate.next} comes next, {len(mstate.following)} tokens wait\n"
            "  in Engine.mtp_accept\n  give every committed token once, and draft in between"
        )
    mstate.following = tuple(int(t) for t in tokens[1:])


def mtp_propose(engine: Engine, mstate: MtpState, token: int, pos: int) -> int:
    """The draft behind a token at position pos + 1; the block has seen pos afterwards.

    Errors: StateError when pos is not the newest accepted position, or for an unknown token.
    """
    _check(engine, mstate, "a draft")
    engine.check_ids([token], 0, "a draft")
    if not mstate.following and mstate.last[:2] == (pos, token) and pos == mstate.next - 1:
        return mstate.last[2]
    newest = mstate.next + len(mstate.following)
    if pos != newest:
        raise StateError(
            f"a draft behind position {pos} was asked for\n"
            f"  the newest accepted position is {newest}\n  in Engine.mtp_propose\n"
            "  accept every committed token first, and draft behind the last"
        )
    drafted = _run(engine, mstate, [*mstate.following, token])
    mstate.following, mstate.last = (), (pos, token, drafted)
    return drafted


def _weights(engine: Engine) -> MtpWeights:
    if engine.mtp is None:
        raise StateError(
            "the next-token block was asked for\n  none is loaded\n"
            f"  from {engine.source.where}\n  open a release with mtp.0.e_proj"
        )
    return engine.mtp


def _check(engine: Engine, mstate: MtpState, asked: str) -> None:
    _weights(engine)
    if mstate.engine is not engine:
        raise StateError(
            f"{asked} was asked for with another engine's next-token state\n"
            "  its ring belongs to other weights\n  in dsv4.engine.nextn\n"
            "  use one that this engine's mtp_alloc_state() made"
        )


def _run(engine: Engine, mstate: MtpState, following: Sequence[int]) -> int:
    """The block on the first taps at positions next..; the largest token of the last row."""
    rows = len(following)
    ids = engine.check_ids(np.asarray(following), mstate.next, "the next-token block")
    if rows not in mstate.programs:
        mstate.programs[rows] = _bind(engine, mstate, rows)
    replay, chosen = mstate.programs[rows]
    send_control(engine, mstate.control, mstate.next, ids)
    replay.run()
    drafted = int(engine.last.device.to_numpy(chosen)[0])
    mstate.next += rows
    return drafted


def _bind(engine: Engine, mstate: MtpState, rows: int) -> tuple[Replay, Any]:
    w, c = _weights(engine), engine.config
    runs = [
        Rows(
            config=c,
            arms=engine.arms,
            stage=stage,
            tape=Tape(stage.device, keep=True, profile=engine.arms.profile),
            workspace=space,
            rows=rows,
            start=None,
            bound=engine.max_seq,
            control=control,
            library=False,
            schedules={},
            look=look_at_nothing,
        )
        for stage, space, control in zip(
            engine.stages, mstate.workspaces, mstate.control, strict=True
        )
    ]
    run = runs[-1]
    streams = mstate.taps.rows[:rows].reshape(rows, c.hc_mult, c.dim)
    out = run_mtp(runs, run, w, mstate.cache, streams)
    chosen = greedy(run, w.exit, out[-1:], engine.last.head)
    return Replay(engine, tuple(r.tape for r in runs)), chosen
