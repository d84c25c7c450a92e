"""The drafter's memory of a sequence: rings of rows that committed positions alone have written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.attention import cache_rows
from dsv4.engine.capture import ForwardOut
from dsv4.engine.prefill import prefill
from dsv4.engine.products import product, product_input
from dsv4.engine.replay import Replay
from dsv4.engine.rows import Rows, look_at_nothing
from dsv4.engine.state import DecodeState, LayerCache, poisoning
from dsv4.engine.streams import norm
from dsv4.engine.tape import Tape, Workspace
from dsv4.engine.taps import Taps, check_taps, new_taps, watching
from dsv4.engine.verify import verify_tmax
from dsv4.engine.weights import DsparkWeights
from dsv4.errors import StateError
from dsv4.spec import F32

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(slots=True, eq=False)
class DsparkState:
    """Rings by block of the drafter, and the taps that fill them.

    rings: rows [0, W) by position modulo W, then a row for each draft, which no call outlives.
    next: the position to be written next; every earlier one was, once and in order. control: what
    a draft reads on the last stage; entry_control, entry_space: what it needs on the first.
    """

    engine: object
    taps: Taps
    rings: tuple[LayerCache, ...]
    workspace: Workspace
    entry_space: Workspace
    control: Any
    entry_control: Any
    ring_control: Any
    next: int = 0
    poisoned: str = ""
    programs: dict[Any, Any] = field(default_factory=dict)

    def begin_again(self) -> None:
        """Forget the sequence and keep what is bound. Errors: StateError when poisoned."""
        self.check(self.engine, "a new sequence")
        self.next = 0

    def check(self, engine: object, asked: str) -> None:
        """Nothing, if the engine may use this state. Errors: StateError."""
        if self.engine is not engine:
            raise StateError(
                f"{asked} was asked for on another engine's drafter state\n"
                "  its rings belong to other weights\n  in dsv4.engine.dspark\n"
                "  use one that this engine's dspark_alloc_state() made"
            )
        if self.poisoned:
            raise StateError(
                f"{asked} was asked for on a drafter state that a failed call left half-written\n"
                f"  it failed with: {self.poisoned}\n  at position {self.next}\n"
                "  make a new one and prime it again"
            )


def dspark_weights(engine: Engine) -> DsparkWeights:
    """The drafter. Errors: StateError when none is loaded."""
    if engine.dspark is None:
        raise StateError(
            f"the drafter was asked for\n  none is loaded (DSV4_DRAFTER={engine.arms.drafter})\n"
            f"  from {engine.source.where}\n"
            "  open a release with mtp.0.main_proj under DSV4_DRAFTER=dspark"
        )
    return engine.dspark


def dspark_alloc_state(engine: Engine) -> DsparkState:
    """Empty rings and taps for one sequence. Errors: StateError without a drafter."""
    blocks, c, last = dspark_weights(engine).blocks, engine.config, engine.last
    block, window = c.dspark_block_size, c.window_size

    def ring() -> LayerCache:
        kvc = last.device.zeros((window + block, c.head_dim), F32)
        return LayerCache(0, window, block, kvc, None, None, None)

    def integers(device: Any, count: int) -> Any:
        return device.to_device(np.zeros(count, np.int32))

    first = engine.stages[0].device
    return DsparkState(
        engine=engine,
        taps=new_taps(engine, c.dspark_target_layer_ids, verify_tmax(engine), averaged=True),
        rings=tuple(ring() for _ in blocks),
        workspace=Workspace(last.device, max(block, verify_tmax(engine))),
        entry_space=Workspace(first, block),
        control=integers(last.device, 2 + 3 * block),
        entry_control=integers(first, 1 + block),
        ring_control=integers(last.device, 1),
    )


def dspark_write_rings(
    engine: Engine, dstate: DsparkState, tap_row: int, pos: int, rows: int = 1
) -> None:
    """Write the rows of committed positions pos.. from rows tap_row.. of the taps.

    A position's row does not depend on how many are written together. Errors: StateError for a
    position that is not the next one (the last one may be written again), or rows that are not
    there.
    """
    dspark_weights(engine)
    dstate.check(engine, "a ring row")
    check_taps(engine, dstate.taps, tap_row, rows, "a ring row")
    again = rows == 1 and pos == dstate.next - 1
    if rows < 1 or (pos != dstate.next and not again):
        raise StateError(
            f"ring rows of positions {pos}..{pos + rows - 1} were asked for\n"
            f"  position {dstate.next} comes next\n  in Engine.dspark_write_rings\n"
            "  write every committed position once, in order, and no other"
        )
    if pos + rows > engine.max_seq:
        raise StateError(
            f"ring rows up to position {pos + rows - 1} were asked for\n"
            f"  the engine was loaded for {engine.max_seq} positions\n"
            "  in Engine.dspark_write_rings\n  load it with a larger max_seq"
        )
    with poisoning(dstate):
        key = ("rings", tap_row, rows)
        if key not in dstate.programs:
            dstate.programs[key] = _bind_rings(engine, dstate, tap_row, rows)
        replay: Replay = dstate.programs[key]
        engine.last.device.write(dstate.ring_control, np.array([pos], np.int32))
        replay.run()
        dstate.next = pos + rows


def dspark_prime_prefill(engine: Engine, dstate: DsparkState, main_hidden: Any, s: int) -> None:
    """Write the rings of a prompt of s tokens from the taps [n,W] of its last n positions.

    Row 0 of the taps holds the last position afterwards. Errors: StateError for a state that has
    positions already, or for fewer rows than a window and the prompt have.
    """
    dspark_weights(engine)
    dstate.check(engine, "a prime")
    wanted, width = min(s, engine.config.window_size), int(dstate.taps.rows.shape[1])
    if dstate.next or s < 1 or s > engine.max_seq:
        raise StateError(
            f"a prime with {s} positions was asked for\n"
            f"  the rings hold {dstate.next}, the engine has room for {engine.max_seq}\n"
            "  in Engine.dspark_prime_prefill\n  prime a new state, once"
        )
    shape = tuple(int(n) for n in main_hidden.shape)
    if len(shape) != 2 or shape[1] != width or shape[0] < wanted:
        raise StateError(
            f"a prime with taps {list(shape)} was asked for\n"
            f"  {s} positions need the last {wanted} rows of [{s}, {width}] at least\n"
            "  in Engine.dspark_prime_prefill\n  give the taps of the prompt"
        )
    dstate.next = s - wanted
    held = main_hidden[shape[0] - wanted :]
    for first in range(0, wanted, dstate.taps.count):
        part = held[first : first + dstate.taps.count]
        with engine.last.device.active():
            dstate.taps.rows[: len(part)] = part
        dspark_write_rings(engine, dstate, 0, dstate.next, len(part))
    with engine.last.device.active():
        dstate.taps.rows[:1] = held[-1:]


def dspark_prefill_prime(
    engine: Engine, ids: Any, state: DecodeState, dstate: DsparkState
) -> ForwardOut:
    """`prefill_with_cache` of a whole prompt that primes the rings in the same pass.

    Errors: as there, and StateError for states that have seen something.
    """
    dspark_weights(engine)
    dstate.check(engine, "a prime")
    out, held = prefill_tapped(engine, ids, state, dstate.taps)
    dspark_prime_prefill(engine, dstate, held, state.pos)
    return out


def prefill_tapped(
    engine: Engine, ids: Any, state: DecodeState, taps: Taps
) -> tuple[ForwardOut, Any]:
    """(the result of a prompt on a fresh state, taps [n,W] of its last window of positions)."""
    state.check(engine, "a prefill")
    if state.pos:
        raise StateError(
            f"a tapped prefill was asked for\n  the state has seen {state.pos} tokens\n"
            "  in dsv4.engine.dspark\n  give the whole prompt at once, on a fresh state"
        )
    checked = engine.check_ids(ids, 0, "a prefill")
    count = min(len(checked), engine.config.window_size)
    held = engine.last.device.empty((count, int(taps.rows.shape[1])), F32)
    with poisoning(state):
        watch = watching(taps, held, len(checked))
        out = prefill(engine, state, checked, keep_states=False, watch=watch)
        assert out is not None, "a prompt runs through all layers"
    return out, held


def dspark_ring_classes(engine: Engine, dstate: DsparkState) -> list[tuple[str, np.ndarray]]:
    """Host copies of what the rings remember, by name; draft rows are not part of it."""
    dstate.check(engine, "the contents of the rings")
    window = engine.config.window_size
    return [
        (f"dspark.ring{k}", engine.last.device.to_numpy(ring.kvc[:window]))
        for k, ring in enumerate(dstate.rings)
    ]


def main_stream(run: Rows, w: DsparkWeights, taps: Any) -> Any:
    """The one input [T,D] that all blocks' rows are made from.  Shapes: taps [T,n*D]."""
    raw = run.buffer("main raw", run.config.dim)
    product(run, w.main_proj, product_input(run, "taps", taps), raw)
    return norm(run, raw, w.main_norm, run.buffer("main", run.config.dim))


def rows_of(engine: Engine, dstate: DsparkState, control: Any, rows: int, *, keep: bool) -> Rows:
    """Rows of the drafter on the last stage, at positions that `control` says."""
    last = engine.last
    return Rows(
        config=engine.config,
        arms=engine.arms,
        stage=last,
        tape=Tape(last.device, keep=keep, profile=engine.arms.profile),
        workspace=dstate.workspace,
        rows=rows,
        start=None,
        bound=engine.max_seq,
        control=control,
        library=False,
        schedules={},
        look=look_at_nothing,
    )


def _bind_rings(engine: Engine, dstate: DsparkState, tap_row: int, rows: int) -> Replay:
    w = dspark_weights(engine)
    run = rows_of(engine, dstate, dstate.ring_control, rows, keep=True)
    with run.phase("drafter rings"):
        stream = main_stream(run, w, dstate.taps.rows[tap_row : tap_row + rows])
        given = product_input(run, "x", stream)
        when = run.schedule(0, engine.config.window_size, 1)
        for block, ring in zip(w.blocks, dstate.rings, strict=True):
            cache_rows(run, block, ring.kvc, given, when)
    return Replay(engine, (run.tape,))
