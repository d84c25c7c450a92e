"""Steps of one to eight rows: prepared once for a state, then run at any position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.arms import path_name
from dsv4.engine.capture import Capture
from dsv4.engine.heads import spoken
from dsv4.engine.lanes import send
from dsv4.engine.prefill import bucket, eager_rows, run_piece, spoken_at_once
from dsv4.engine.recording import Recorded, recorded
from dsv4.engine.rows import Rows, look_at_nothing
from dsv4.engine.state import DecodeState
from dsv4.engine.tape import Tape, Workspace
from dsv4.engine.trunk import AfterLayer, go_on, run_ranks
from dsv4.errors import Refusal
from dsv4.runtime.device import Device

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Program:
    """A step of some rows, bound: a tape for each stage or rank, and the streams at the ends.

    ends: of the last stage, or of each rank.
    """

    runs: tuple[Rows, ...]
    ends: tuple[Any, ...]

    @property
    def streams(self) -> Any:
        """The streams [T,M,D] at the end, on the device of the head's result."""
        return self.ends[-1]

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """What was bound, of each stage or rank."""
        return tuple(run.tape for run in self.runs)

    def run(self) -> None:
        """Send every launch of the trunk."""
        send(self.tapes)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a step, bound, on the last stage or on every rank, and where its result lies.

    The result is None where another process has the head.
    """

    tapes: tuple[Tape, ...]
    result: Any

    def run(self) -> None:
        """Send its launches."""
        send(self.tapes)


def step_logits(engine: Engine, state: DecodeState, ids: np.ndarray) -> np.ndarray:
    """Logits [T,V] of the rows of checked ids at the state's position, which does not move."""
    if not engine.arms.decode_path.on_device:
        return step_eagerly(engine, state, ids, None)
    return begin_step(engine, state, ids, "logits")()


def step_greedy(engine: Engine, state: DecodeState, ids: np.ndarray) -> np.ndarray:
    """The tokens [T] with the largest logits; on the device path only they come back."""
    if not engine.arms.decode_path.on_device:
        return np.asarray(np.argmax(step_logits(engine, state, ids), axis=1))
    return begin_step(engine, state, ids, "greedy")()


def begin_step(
    engine: Engine, state: DecodeState, ids: np.ndarray, kind: str
) -> Callable[[], np.ndarray]:
    """Send a bound step of checked ids; the call gives what its head, "logits" or "greedy", says.

    Steps of other states may be sent before it is called: with several stages they run meanwhile.
    """
    if uses_graphs(engine):
        key = ("graph", kind, len(ids), bucket(state.pos + len(ids), engine.max_seq))
        if key not in state.programs:
            state.programs[key] = record_step(engine, state, len(ids), kind)
        write_control(engine, state, ids)
        state.programs[key].replay()
        head = head_of(engine, state, len(ids), kind)
    else:
        run_program(engine, state, ids)
        head = head_of(engine, state, len(ids), kind)
        head.run()
    return engine.fetch(head.result)


def uses_graphs(engine: Engine) -> bool:
    """Whether bound steps are replayed as graphs: no host in between, and it pays."""
    arms = engine.arms
    if arms.graphs == "off" or not arms.capturable or arms.profile != "off":
        return False
    return arms.graphs == "on" or engine.last.device.backend == "cuda"


def step_eagerly(
    engine: Engine, state: DecodeState, ids: np.ndarray, capture: Capture | None
) -> np.ndarray:
    """Logits [T,V] by the operators of a prompt, through the library's products."""
    runs = eager_rows(engine, ids, state.pos, library=True)
    ends = run_piece(engine, state, runs, capture)
    assert ends is not None, "a step runs through all layers"
    return engine.fetch(spoken_at_once(runs, ends, "logits"))()


def run_program(engine: Engine, state: DecodeState, ids: np.ndarray) -> Program:
    """The step's program, after its launches were sent."""
    program = program_of(engine, state, len(ids), bucket(state.pos + len(ids), engine.max_seq))
    write_control(engine, state, ids)
    program.run()
    return program


def write_control(engine: Engine, state: DecodeState, ids: np.ndarray) -> None:
    """Tell every stage the position of a step's first row and the tokens of its rows."""
    send_control(engine, state.control, state.pos, ids)


def send_control(engine: Engine, controls: Sequence[Any], pos: int, ids: np.ndarray) -> None:
    """Write a step's first position and its tokens into a control of every stage."""
    control = np.concatenate([np.array([pos], np.int32), ids])
    for stage, array in zip(engine.stages, controls, strict=True):
        stage.device.write(array[: 1 + len(ids)], control)


def record_step(engine: Engine, state: DecodeState, rows: int, kind: str) -> Recorded:
    """Graphs of steps of that many rows as they are bound at the state's position, one a device.

    Replaying them after `write_control` is the step, at any position that its bound covers.
    Errors: Refusal for arms that look at values on the host.
    """
    if not engine.arms.capturable:
        raise Refusal(
            "a graph of a step was asked for on"
            f" DSV4_DECODE_PATH={path_name(engine.arms.decode_path)}\n"
            "  a graph holds launches, and nothing that the host looks at\n"
            "  in dsv4.engine.decode\n  use the device path with quantisers on"
        )
    program = program_of(engine, state, rows, bucket(state.pos + rows, engine.max_seq))
    head = head_of(engine, state, rows, kind)
    # Once outside the graph: a driver may load code at its first launch, which a capture forbids.
    # The row it writes at this position is written again by the step itself.
    write_control(engine, state, np.zeros(rows, np.int32))
    program.run()
    head.run()
    engine.settle()
    for stage in engine.stages:
        stage.device.synchronize()
    return recorded((*program.tapes, *head.tapes), engine.arms.branches)


def program_of(engine: Engine, state: DecodeState, rows: int, bound: int) -> Program:
    """The trunk of steps of that many rows below that position; bound on first use."""
    key = ("trunk", rows, bound)
    if key not in state.programs:
        state.programs[key] = bind_trunk(
            engine, state, state.workspaces, state.control, rows, bound
        )
    program: Program = state.programs[key]
    return program


def head_of(engine: Engine, state: DecodeState, rows: int, kind: str) -> Head:
    """The head of steps of that many rows, "logits" or "greedy"; bound on first use."""
    key = (kind, rows)
    if key not in state.programs:
        program = program_of(engine, state, rows, bucket(state.pos + rows, engine.max_seq))
        state.programs[key] = bind_head(engine, program, kind)
    head: Head = state.programs[key]
    return head


def bind_trunk(
    engine: Engine,
    state: DecodeState,
    spaces: Sequence[Workspace],
    controls: Sequence[Any],
    rows: int,
    bound: int,
    after: AfterLayer = go_on,
) -> Program:
    """A step of that many rows below a position, on a state's caches, bound.

    spaces, controls: a workspace and a control for each stage. after: may add launches.
    """
    runs = tuple(
        Rows(
            config=stage.share.config(engine.config),
            arms=engine.arms,
            stage=stage,
            tape=bound_tape(engine, stage.device),
            workspace=space,
            rows=rows,
            start=None,
            bound=bound,
            control=control,
            library=engine.arms.device_gemm == "cublas",
            schedules={},
            look=look_at_nothing,
        )
        for stage, space, control in zip(engine.stages, spaces, controls, strict=True)
    )
    return Program(runs, run_ranks(runs, state.caches, after))


def bound_tape(engine: Engine, device: Device) -> Tape:
    """An empty tape for a bound step on that device."""
    arms = engine.arms
    return Tape(device, keep=True, profile=arms.profile, dependent=arms.starts_early(device))


def bind_head(engine: Engine, program: Program, kind: str) -> Head:
    """The head of a step, "logits" or "greedy", bound."""
    speaking = program.runs[-len(program.ends) :]
    runs = [replace(run, tape=bound_tape(engine, run.stage.device)) for run in speaking]
    result = spoken(runs, program.ends, kind)
    return Head(tuple(run.tape for run in runs), result)
