"""Decode steps under the watch: what they launch, what they read, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.interleave import Turns, step_turns, take_turns
from dsv4.engine.lanes import in_order, send
from dsv4.engine.prefill import bucket
from dsv4.engine.recording import recorded
from dsv4.engine.state import DecodeState, begin_again
from dsv4.engine.switches import resolve_arms
from dsv4.engine.tape import Entry, Tape
from dsv4.errors import Refusal
from lab.minted import model_of

_FEWEST_LAUNCHES = 32  # of a graph that times a kernel
_BOUNDARY = "receive"  # what a tape calls the copy of streams from the stage before


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """One phase of a step: launches, host calls, bytes it must move, and time of its own."""

    phase: str
    launches: int
    host_calls: int
    size_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of a step: its launches, the bytes they must move, and their time in a graph."""

    kernel: str
    launches: int
    size_bytes: int
    graph_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """A decode step at a position.

    send_s: until everything was launched one by one; step_s: until that was done. graph_s: of the
    same launches replayed as graphs: one, by device events, or one for each of several devices, by
    the host's clock from the first launch until all are done; None where steps are not replayed.
    kernels: each kernel's launches replayed alone, the most expensive first; none without graphs.
    boundary_s: of the copies between stages, sent alone; boundary_bytes: what they move.
    joins: how often the ranks of a tensor-parallel model meet; join_s: of one such join, the mean
    of all of them sent with nothing between.
    """

    path: str
    position: int
    rows: int
    launches: int
    host_calls: int
    size_bytes: int
    send_s: float
    step_s: float
    graph_s: float | None
    phases: tuple[PhaseCost, ...]
    kernels: tuple[KernelCost, ...]
    boundary_s: float = 0.0
    boundary_bytes: int = 0
    joins: int = 0
    join_s: float = 0.0

    @property
    def best_s(self) -> float:
        """What a step costs as the engine runs it: replayed where it is."""
        return self.step_s if self.graph_s is None else self.graph_s


@dataclass(frozen=True, slots=True)
class StreamsCost:
    """Greedy decoding of several sequences in turns beside one alone, tokens read back.

    step_s: the mean of a step of all of them; alone_s: of a step of one by itself.
    """

    streams: int
    step_s: float
    alone_s: float

    @property
    def rows_per_s(self) -> float:
        """Tokens a second of all together."""
        return self.streams / self.step_s

    @property
    def gain(self) -> float:
        """How many times the tokens of one alone."""
        return self.streams * self.alone_s / self.step_s


@dataclass(frozen=True, slots=True)
class Replays:
    """A step replayed again and again. different: how often it left other bytes than at first;
    first: the first of these replays, or None; time_s: of all, with looking at what they left.
    """

    count: int
    different: int
    first: int | None
    time_s: float


def open_engine(
    folder: Path | str,
    devices: Sequence[int],
    backend: str,
    max_seq: int | None,
    switches: Mapping[str, str | None],
) -> Engine:
    """The engine of a folder, or of `mint:...`, under these switches. Errors: as `Engine.load`."""
    arms = resolve_arms(**switches)
    return Engine.load(model_of(folder), devices, backend=backend, max_seq=max_seq, arms=arms)


def step_cost(engine: Engine, *, context: int, rows: int = 1, repeats: int = 5) -> StepCost:
    """The median cost of greedy steps after a prompt of `context` tokens.

    Errors: Refusal on the legacy path, whose steps are not bound; StateError for too little room.
    """
    if not engine.arms.decode_path.on_device:
        raise Refusal(
            "the cost of a step was asked for on DSV4_DECODE_PATH=legacy\n"
            "  its steps are bound anew each time\n  in lab.engine_steps\n"
            "  choose device or device-hostmath"
        )
    tokens = np.random.default_rng(0).integers(0, engine.config.vocab_size, context + rows)
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(tokens[:context], state)
    ids = tokens[context:].astype(np.int32)
    decode.step_greedy(engine, state, ids)
    entries = step_entries(engine, state, rows)
    sent, done = [], []
    for _ in range(repeats):
        _synchronize(engine)
        begin = time.perf_counter()
        decode.write_control(engine, state, ids)
        for entry in entries:
            entry.run()
        sent.append(time.perf_counter() - begin)
        _synchronize(engine)
        done.append(time.perf_counter() - begin)
    launches = [e for e in entries if not e.host]
    joins, join_s = join_cost(engine, step_tapes(engine, state, rows), repeats)
    return StepCost(
        path=str(engine.arms.to_json()["decode_path"]),
        position=context,
        rows=rows,
        launches=len(launches),
        host_calls=len(entries) - len(launches),
        size_bytes=sum(e.size_bytes for e in entries),
        send_s=float(np.median(sent)),
        step_s=float(np.median(done)),
        graph_s=_graph_s(engine, state, rows, repeats),
        phases=tuple(_phases(engine, entries)),
        kernels=tuple(kernel_costs(engine, entries, repeats)),
        boundary_s=_boundary_s(engine, entries, repeats),
        boundary_bytes=sum(e.size_bytes for e in entries if e.name == _BOUNDARY) // 2,
        joins=joins,
        join_s=join_s,
    )


def replays(engine: Engine, *, context: int, count: int, rows: int = 1) -> Replays:
    """A greedy step behind random tokens, replayed and compared: streams of all stages, and tokens.

    Errors: Refusal for arms whose steps are no graph; StateError for too little room.
    """
    tokens = np.random.default_rng(0).integers(0, engine.config.vocab_size, context + rows)
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(tokens[:context], state)
    graph = decode.record_step(engine, state, rows, "greedy")
    program = decode.program_of(engine, state, rows, bucket(context + rows, engine.max_seq))
    chosen = decode.head_of(engine, state, rows, "greedy").result
    speaking = engine.stages[-len(program.ends) :]
    decode.write_control(engine, state, tokens[context:].astype(np.int32))

    def left() -> list[bytes]:
        graph.replay()
        ends = zip(speaking, program.ends, strict=True)
        found = [stage.device.to_numpy(end).tobytes() for stage, end in ends]
        return [*found, np.asarray(engine.last.device.to_numpy(chosen)).tobytes()]

    begin, wanted = time.perf_counter(), left()
    others = [turn for turn in range(1, count) if left() != wanted]
    first = others[0] if others else None
    return Replays(count, len(others), first, time.perf_counter() - begin)


def streams_cost(engine: Engine, *, context: int, streams: int, repeats: int = 5) -> StreamsCost:
    """What steps of several sequences in turns cost after prompts of `context` tokens each.

    All steps run without a pause, as in generation: while a later stage ends one sequence's step,
    the first begins the next one's. So their mean has a share of the beginning and the end.
    Errors: StateError for too little room: a sequence goes on by a step and the repeats.
    """
    rng = np.random.default_rng(0)
    states = [engine.alloc_decode_state(rows=1) for _ in range(streams)]
    for state in states:
        engine.prefill_with_cache(rng.integers(0, engine.config.vocab_size, context), state)
    tokens: list[list[int]] = [[1 + n] for n in range(streams)]

    def steps(n: int, count: int) -> Turns:
        for _ in range(count):
            yield from step_turns(engine, tokens[n][-1], states[n], tokens[n])

    def step_all(chosen: Sequence[int], count: int) -> None:
        take_turns([steps(n, count) for n in chosen])

    # Binds and records.
    step_all(range(streams), 1)
    together = _wall_s(engine, lambda: step_all(range(streams), repeats)) / repeats
    begin_again(states[0])
    engine.prefill_with_cache(rng.integers(0, engine.config.vocab_size, context), states[0])
    alone = _wall_s(engine, lambda: step_all((0,), repeats)) / repeats
    return StreamsCost(streams, together, alone)


def _graph_s(engine: Engine, state: DecodeState, rows: int, repeats: int) -> float | None:
    """The median of replays of the step as the engine records it; they all do the same again."""
    if not decode.uses_graphs(engine):
        return None
    graph = decode.record_step(engine, state, rows, "greedy")
    graph.replay()
    if graph.graphs > 1:
        # Events of one device do not see when another one began.
        _synchronize(engine)
        return float(np.median([_wall_s(engine, graph.replay) for _ in range(max(repeats, 5))]))
    return float(np.median(engine.last.device.time_s(graph.replay, max(repeats, 5))))


def _wall_s(engine: Engine, work: Callable[[], None]) -> float:
    """Seconds of work and of waiting for all devices, which are idle before."""
    begin = time.perf_counter()
    work()
    _synchronize(engine)
    return time.perf_counter() - begin


def _replayed_s(engine: Engine, own: Sequence[Entry], repeats: int) -> float | None:
    """The median of replays, which all do the same step again; of several devices, their sum.

    A graph costs some microseconds whatever it holds, so few launches are in it several times.
    """
    if not decode.uses_graphs(engine) or any(e.host for e in own):
        return None
    spent_s = 0.0
    for device in {id(e.device): e.device for e in own}.values():
        mine = [e for e in own if e.device is device]
        times = -(-_FEWEST_LAUNCHES // len(mine))
        with device.capture() as graph:
            for entry in mine * times:
                entry.run()
        graph.replay()
        spent_s += float(np.median(device.time_s(graph.replay, max(repeats, 5)))) / times
    return spent_s


def _boundary_s(engine: Engine, entries: Sequence[Entry], repeats: int) -> float:
    """The median time of the copies between stages, one after the other; 0 without any."""
    spent_s = 0.0
    for entry in entries:
        if entry.name == _BOUNDARY:
            entry.run()
            _synchronize(engine)
            spent_s += float(np.median(entry.device.time_s(entry.run, max(repeats, 5))))
    return spent_s


def kernel_costs(engine: Engine, entries: Sequence[Entry], repeats: int) -> list[KernelCost]:
    """Costs by kernel, none without graphs; the launches of all layers together read more than a
    cache holds. Joins are left out: one rank's alone would wait for the others (`join_cost`).
    """
    found = []
    for name in dict.fromkeys(e.name for e in entries if not (e.crossing or e.join)):
        own = [e for e in entries if e.name == name]
        spent_s = _replayed_s(engine, own, repeats)
        if spent_s is not None:
            found.append(KernelCost(name, len(own), sum(e.size_bytes for e in own), spent_s))
    return sorted(found, key=lambda k: -k.graph_s)


def step_entries(engine: Engine, state: DecodeState, rows: int) -> list[Entry]:
    """Everything that a greedy step does, in order."""
    return [e for _, some in in_order(step_tapes(engine, state, rows)) for e in some]


def step_tapes(engine: Engine, state: DecodeState, rows: int) -> list[Tape]:
    """What a greedy step has bound: its trunk, then its head."""
    bound = bucket(state.pos + rows, engine.max_seq)
    program = decode.program_of(engine, state, rows, bound)
    return [*program.tapes, *decode.head_of(engine, state, rows, "greedy").tapes]


def join_cost(engine: Engine, tapes: Sequence[Tape], repeats: int) -> tuple[int, float]:
    """(how often the ranks meet in a step, seconds of one join); (0, 0.0) for a model in stages.

    All joins of the step are sent with nothing between them, on all ranks, as graphs where steps
    are; the time is by the host's clock.
    """
    met = [replace(t, entries=[e for e in t.entries if e.join]) for t in tapes]
    count = sum(len(t.entries) for t in met) // len(engine.stages)
    if not count:
        return 0, 0.0
    replay = recorded(met, False).replay if decode.uses_graphs(engine) else lambda: send(met)
    replay()
    _synchronize(engine)
    spent = [_wall_s(engine, replay) for _ in range(max(repeats, 5))]
    return count, float(np.median(spent)) / count


def _phases(engine: Engine, entries: Sequence[Entry]) -> list[PhaseCost]:
    """Costs by phase, in the order they first come; each phase waited for at its end."""
    order = list(dict.fromkeys(e.phase for e in entries))
    times = dict.fromkeys(order, 0.0)
    begin = 0
    while begin < len(entries):
        end = begin
        while end < len(entries) and entries[end].phase == entries[begin].phase:
            end += 1
        _synchronize(engine)
        started = time.perf_counter()
        for entry in entries[begin:end]:
            entry.run()
        _synchronize(engine)
        times[entries[begin].phase] += time.perf_counter() - started
        begin = end
    found = []
    for phase in order:
        own = [e for e in entries if e.phase == phase]
        host = sum(e.host for e in own)
        size = sum(e.size_bytes for e in own)
        found.append(PhaseCost(phase, len(own) - host, host, size, times[phase]))
    return found


def _synchronize(engine: Engine) -> None:
    for stage in engine.stages:
        stage.device.synchronize()
