"""Rounds that verify drafts: some rows of the trunk at once, of which a prefix is kept.

Rings are longer than a window by more than a round, raw rows of compressors likewise, and blocks
are counted by positions. So a round writes only places that nothing committed needs, and rows that
are not kept are written again before anything reads them: committing is counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.arms import VERIFY_ROWS, path_name
from dsv4.engine.decode import (
    Program,
    bind_head,
    bind_trunk,
    send_control,
    write_control,
)
from dsv4.engine.prefill import bucket
from dsv4.engine.replay import Replay
from dsv4.engine.state import DecodeState, new_control, poisoning
from dsv4.engine.tape import Workspace
from dsv4.engine.taps import Taps, check_taps, tapping
from dsv4.engine.trunk import go_on
from dsv4.errors import StateError
from dsv4.kernels.argmax import argmax
from dsv4.spec import I32

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round that is verified and not committed: its state, first position and rows."""

    state: DecodeState
    start: int
    rows: int


@dataclass(slots=True, eq=False)
class VerifyState:
    """Where rounds run: workspaces of `tmax` rows on every stage.

    It is idle, open (a round waits to be committed), or poisoned (a round failed; the sequence it
    ran on has lost nothing and goes on with a new one).
    """

    engine: object
    tmax: int
    workspaces: tuple[Workspace, ...]
    control: tuple[Any, ...]
    open: OpenRound | None = None
    poisoned: str = ""

    @property
    def size_bytes(self) -> tuple[int, ...]:
        """Bytes of the buffers on every stage so far."""
        return tuple(w.size_bytes for w in self.workspaces)


@dataclass(frozen=True, slots=True)
class VerifyOut:
    """What a round says about each of its rows: the largest token [T], and logits [T,V] if asked.

    Row i speaks about the token after toks[i].
    """

    argmax: np.ndarray
    logits: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """A round's launches. vstate, taps: held so that no other object gets their identity."""

    vstate: VerifyState | None
    taps: Taps | None
    program: Program
    heads: dict[str, tuple[Replay, Any]] = field(default_factory=dict)


def verify_tmax(engine: Engine) -> int:
    """The most rows of a round: the drafts of a call and the token before them; 0 without any."""
    if engine.tail == "dspark":
        return min(engine.config.dspark_block_size + 1, VERIFY_ROWS)
    return 2 if engine.tail == "mtp" else 0


def alloc_verify_state(engine: Engine, rows: int | None = None) -> VerifyState:
    """A place for rounds of up to `rows` rows; as many as the drafter needs when not given.

    Errors: StateError without a drafter, for more rows than a step can have, or off the device
    path.
    """
    if not engine.arms.decode_path.on_device:
        raise StateError(
            f"rounds were asked for on DSV4_DECODE_PATH={path_name(engine.arms.decode_path)}\n"
            "  its steps have one row\n  in Engine.alloc_verify_state\n"
            "  load with DSV4_DECODE_PATH=device"
        )
    tmax = verify_tmax(engine) if rows is None else rows
    if not 1 <= tmax <= VERIFY_ROWS:
        raise StateError(
            f"rounds of {tmax} rows were asked for\n"
            f"  a round has 1 to {VERIFY_ROWS} rows, and without a drafter it is not known how many"
            f"\n  from {engine.source.where}\n"
            "  load with DSV4_DRAFTER=dspark or a next-token block, or say how many"
        )
    return VerifyState(
        engine,
        tmax,
        tuple(Workspace(s.device, tmax) for s in engine.stages),
        tuple(new_control(s.device, tmax) for s in engine.stages),
    )


def verify_batch(
    engine: Engine,
    toks: Sequence[int] | np.ndarray,
    state: DecodeState,
    vstate: VerifyState,
    taps: Taps | None = None,
    *,
    want_logits: bool = False,
) -> VerifyOut:
    """What the trunk says after each of these tokens at the state's next positions.

    Row i is what i + 1 single steps would give, byte for byte. The state's position does not move:
    `commit_verify` keeps a prefix. taps: its rows 0..T-1 are filled.
    Errors: StateError for a call out of order, too many rows, or tokens that do not fit.
    """
    return begin_verify(engine, toks, state, vstate, taps, want_logits=want_logits)()


def begin_verify(
    engine: Engine,
    toks: Sequence[int] | np.ndarray,
    state: DecodeState,
    vstate: VerifyState,
    taps: Taps | None = None,
    *,
    want_logits: bool = False,
) -> Callable[[], VerifyOut]:
    """`verify_batch` sent; the call gives what it says. The round is open from now on.

    Rounds and steps of other states may be sent before it is called.
    """
    chosen, made = _round(engine, toks, state, vstate, taps, want_logits, engine.fetch)

    def finish() -> VerifyOut:
        try:
            with poisoning(vstate):
                return VerifyOut(chosen(), None if made is None else made())
        except BaseException:
            state.open_rows, vstate.open = 0, None
            raise

    return finish


def verify_on_device(
    engine: Engine,
    toks: Sequence[int] | np.ndarray,
    state: DecodeState,
    vstate: VerifyState,
    taps: Taps | None = None,
    *,
    want_logits: bool = False,
) -> tuple[Any, Any]:
    """What `verify_batch` says, as copies on the last stage: tokens i32 [T], logits or None."""
    return _round(engine, toks, state, vstate, taps, want_logits, lambda array: array.copy())


def commit_verify(engine: Engine, state: DecodeState, vstate: VerifyState, n_commit: int) -> None:
    """Keep the first rows of the open round; the state moves on by them.

    Errors: StateError without an open round on this state, or for a count that is not 1..T; the
    round stays open then.
    """
    _alive(engine, vstate, "a commit")
    state.check(engine, "a commit", in_round=True)
    if vstate.open is None or vstate.open.state is not state:
        raise StateError(
            f"a commit of {n_commit} rows was asked for\n  no round of this state is open\n"
            "  in Engine.commit_verify\n  call verify_batch first"
        )
    if not 1 <= n_commit <= vstate.open.rows:
        raise StateError(
            f"a commit of {n_commit} rows was asked for\n"
            f"  the open round has rows 1..{vstate.open.rows}\n  in Engine.commit_verify\n"
            "  the round is still open: commit 1 row at least, and not more than it has"
        )
    state.pos = vstate.open.start + n_commit
    state.open_rows, vstate.open = 0, None


def decode_step_tap(
    engine: Engine, tok: int, state: DecodeState, taps: Taps, tap_row: int
) -> np.ndarray:
    """`decode_step` that also fills a row of the taps. Errors: as there, or off the device path."""
    return np.asarray(_tapped_step(engine, tok, state, taps, tap_row, "logits"))


def decode_step_greedy_tap(
    engine: Engine, tok: int, state: DecodeState, taps: Taps, tap_row: int
) -> int:
    """`decode_step_greedy` that also fills a row of the taps."""
    return int(_tapped_step(engine, tok, state, taps, tap_row, "greedy"))


def _tapped_step(
    engine: Engine, tok: int, state: DecodeState, taps: Taps, tap_row: int, kind: str
) -> Any:
    if not engine.arms.decode_path.on_device:
        raise StateError(
            f"a tapped step was asked for on DSV4_DECODE_PATH={path_name(engine.arms.decode_path)}"
            "\n  only bound steps are tapped\n  in Engine.decode_step_tap\n"
            "  load with DSV4_DECODE_PATH=device"
        )
    check_taps(engine, taps, tap_row, 1, "a step")
    with engine.stepping(state, (tok,)) as ids:
        bound = _bound(engine, state, None, 1, taps, tap_row)
        write_control(engine, state, ids)
        replay, result = _with_head(engine, bound, kind)
        replay.run()
        return engine.fetch(result)()[0]


def _round(
    engine: Engine,
    toks: Sequence[int] | np.ndarray,
    state: DecodeState,
    vstate: VerifyState,
    taps: Taps | None,
    want_logits: bool,
    fetch: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """A round, open afterwards: its tokens and its logits (None unless wanted), both fetched."""
    ids = _checked(engine, toks, state, vstate, taps)
    with poisoning(vstate):
        bound = _bound(engine, state, vstate, len(ids), taps)
        send_control(engine, vstate.control, state.pos, ids)
        chosen, made = _run(engine, bound, want_logits)
        out = fetch(chosen), fetch(made) if want_logits else None
    vstate.open = OpenRound(state, state.pos, len(ids))
    state.open_rows = len(ids)
    return out


def _checked(
    engine: Engine,
    toks: Sequence[int] | np.ndarray,
    state: DecodeState,
    vstate: VerifyState,
    taps: Taps | None,
) -> np.ndarray:
    _alive(engine, vstate, "a round")
    state.check(engine, "a round")
    if vstate.open is not None:
        raise StateError(
            "a round was asked for\n  another one is still open here, on another state\n"
            "  in Engine.verify_batch\n  commit it first, or allocate a second verify state"
        )
    if state.pos == 0:
        raise StateError(
            "a round was asked for on an empty state\n  no prompt has been seen\n"
            "  in Engine.verify_batch\n  call prefill_with_cache first"
        )
    ids = engine.check_ids(toks, state.pos, "a round")
    if len(ids) > vstate.tmax:
        raise StateError(
            f"a round of {len(ids)} rows was asked for\n"
            f"  its verify state has room for {vstate.tmax}\n  in Engine.verify_batch\n"
            "  verify fewer drafts, or allocate a wider one"
        )
    if taps is not None:
        check_taps(engine, taps, 0, len(ids), "a round")
    return ids


def _alive(engine: Engine, vstate: VerifyState, asked: str) -> None:
    if vstate.engine is not engine:
        raise StateError(
            f"{asked} was asked for with another engine's verify state\n"
            "  its buffers lie on other devices\n  in dsv4.engine.verify\n"
            "  use one that this engine allocated"
        )
    if vstate.poisoned:
        raise StateError(
            f"{asked} was asked for with a verify state on which a round failed\n"
            f"  it failed with: {vstate.poisoned}\n  in dsv4.engine.verify\n"
            "  allocate a new one; the sequence has lost nothing and can go on with it"
        )


def _bound(
    engine: Engine,
    state: DecodeState,
    vstate: VerifyState | None,
    rows: int,
    taps: Taps | None,
    first: int = 0,
) -> _Bound:
    """A round's launches (or a step's, in the state's own workspaces), bound on first use."""
    bound = bucket(state.pos + rows, engine.max_seq)
    key = ("round", id(vstate), rows, bound, id(taps), first)
    if key not in state.programs:
        place = state if vstate is None else vstate
        after = go_on if taps is None else tapping(taps, first)
        program = bind_trunk(engine, state, place.workspaces, place.control, rows, bound, after)
        state.programs[key] = _Bound(vstate, taps, program)
    found: _Bound = state.programs[key]
    return found


def _with_head(engine: Engine, bound: _Bound, kind: str) -> tuple[Replay, Any]:
    """(everything of a round with that head, where its result lies), bound on first use."""
    if kind not in bound.heads:
        head = bind_head(engine, bound.program, kind)
        tapes = (*bound.program.tapes, *head.tapes)
        bound.heads[kind] = Replay(engine, tapes), head.result
    return bound.heads[kind]


def _run(engine: Engine, bound: _Bound, want_logits: bool) -> tuple[Any, Any]:
    """The round's tokens, by the device's rule for ties and NaN, and its logits if wanted.

    Both lie in buffers that the next round writes.
    """
    replay, result = _with_head(engine, bound, "logits" if want_logits else "greedy")
    replay.run()
    if not want_logits or result is None:
        return result, None
    chosen = bound.program.runs[-1].buffer("chosen", fmt=I32)
    argmax.prepare(result, out=chosen, device=engine.last.device).run()
    return chosen, result
