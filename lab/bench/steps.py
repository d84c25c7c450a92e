"""A whole decode step: its graph against its launches sent one by one, then its time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.prefill import bucket
from dsv4.engine.state import DecodeState
from dsv4.engine.tape import Entry, Tape
from dsv4.errors import Refusal
from lab.bench.clocks import around
from lab.bench.floors import step_bytes
from lab.bench.measured import Measured, Pair, pair_of
from lab.bench.roofs import Roofs
from lab.bench.sampling import Repeated, replayed, turn_by_turn
from lab.engine_steps import join_cost, kernel_costs, step_entries, step_tapes

HOW_WITHOUT_GRAPH: Final = "launches sent one by one, as these switches run a step"
Arm = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Step:
    """A greedy step at a position, ready to be sampled.

    tapes: what it has bound; entries: all of it in order. reasons: what its proof found wrong.
    digest: of the streams and tokens it ends with. graph: whether it is replayed as one.
    """

    engine: Engine
    tapes: tuple[Tape, ...]
    entries: tuple[Entry, ...]
    again: Repeated
    reasons: tuple[str, ...]
    digest: str
    graph: bool


def bench_step(
    engines: Sequence[Engine],
    arms: Sequence[Arm],
    roofs: Roofs | None,
    *,
    model: str,
    context: int,
    rows: int = 1,
    samples: int = 15,
    seed: int = 0,
) -> tuple[list[Measured], Pair | None]:
    """The step of each engine, sampled turn by turn, and the verdict of the second of two.

    Errors: Refusal on the legacy path, StateError for too little room.
    """
    steps = [open_step(e, context=context, rows=rows, seed=seed) for e in engines]
    device = engines[0].last.device
    timings, clock = around(device, lambda: turn_by_turn([s.again for s in steps], samples))
    found = []
    for step, arm, timing in zip(steps, arms, timings, strict=True):
        size = sum(e.size_bytes for e in step.entries)
        launches = sum(not e.host for e in step.entries)
        cards = step.engine.cards
        # Ranks read at the same time, each from its own memory; stages one after the other.
        reading = 1 if step.engine.last.joins is None else cards
        found.append(
            Measured.of_engine(
                facts(
                    step.engine, "step", f"{model} context {context} rows {rows}", seed,
                    reasons=step.reasons, digest=step.digest,
                ),
                arm,
                timing,
                clock,
                size_bytes=size,
                roof=reading * roofs.read if roofs else None,
                launches=launches,
                more={
                    "model": model,
                    "cards": cards,
                    **_joins(step, samples),
                    "position": context,
                    "rows": rows,
                    "launches": launches,
                    "graph": step.graph,
                    **({} if step.graph else {"timed_by": HOW_WITHOUT_GRAPH}),
                    "floor_bytes": step_bytes(step.engine.config, rows),
                    "kernels": [
                        asdict(k) for k in kernel_costs(step.engine, step.entries, samples)
                    ] if not step.reasons else [],
                },
            )
        )  # fmt: skip
    return found, pair_of(found)


def open_step(engine: Engine, *, context: int, rows: int, seed: int = 0) -> Step:
    """A step behind a prompt of that many random tokens, proved: a replay of its graph leaves the
    bytes of its launches sent one by one; without a graph, of the same launches again.

    Errors: as `bench_step`.
    """
    if not engine.arms.decode_path.on_device:
        raise Refusal(
            "a step was to be timed on DSV4_DECODE_PATH=legacy\n"
            "  its launches are bound anew each time\n  in lab.bench.steps\n"
            "  choose device or device-hostmath"
        )
    tokens = np.random.default_rng(seed).integers(0, engine.config.vocab_size, context + rows)
    ids = tokens[context:].astype(np.int32)
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(tokens[:context], state)
    entries = tuple(step_entries(engine, state, rows))
    decode.write_control(engine, state, ids)
    _run(entries)
    wanted = _ends_with(engine, state, rows)
    graph = _has_graph(engine)
    if graph:
        replay = decode.record_step(engine, state, rows, "greedy").replay
    else:
        replay = lambda: _run(entries)  # noqa: E731
    decode.write_control(engine, state, ids)
    replay()
    got = _ends_with(engine, state, rows)
    why = "a replay of the step left other bytes than its launches sent one by one"
    size = sum(e.size_bytes for e in entries)
    again = replayed(engine.last.device, replay, 1, size)
    reasons = () if got == wanted else (why,)
    tapes = tuple(step_tapes(engine, state, rows))
    return Step(engine, tapes, entries, again, reasons, got, graph)


def facts(
    engine: Engine,
    name: str,
    case: str,
    seed: int,
    *,
    reasons: Sequence[str] = (),
    digest: str = "",
) -> dict[str, Any]:
    """What a result of an engine says about itself in the store."""
    device = engine.last.device
    return {
        "kernel": name,
        "family": "bench",
        "case": case,
        "axes": {},
        "backend": device.backend,
        "mode": getattr(device, "mode", "run"),
        "arch": device.arch,
        "seed": seed,
        "output_digest": digest,
        "reasons": list(reasons),
        "arms": engine.arms.to_json(),
        "outputs": [],
        "flops": 0,
    }


def digest_of_streams(engine: Engine, state: DecodeState, rows: int) -> str:
    """A digest of the streams [T,M,D] that the trunk left."""
    bound = bucket(state.pos + rows, engine.max_seq)
    streams = decode.program_of(engine, state, rows, bound).streams
    return hashlib.sha256(engine.last.device.to_numpy(streams).tobytes()).hexdigest()


def _ends_with(engine: Engine, state: DecodeState, rows: int) -> str:
    head = decode.head_of(engine, state, rows, "greedy")
    chosen = np.asarray(engine.last.device.to_numpy(head.result))
    trunk = digest_of_streams(engine, state, rows)
    return hashlib.sha256(f"{trunk} {chosen.tolist()}".encode()).hexdigest()


def _joins(step: Step, samples: int) -> dict[str, Any]:
    """What a result says about where ranks meet; nothing without ranks."""
    count, spent_s = join_cost(step.engine, step.tapes, samples)
    return {"joins": count, "join_s": spent_s} if count else {}


def _has_graph(engine: Engine) -> bool:
    devices = {id(stage.device) for stage in engine.stages}
    # The graphs of ranks wait for each other, so the last one's events see the whole step.
    alike = len(devices) == 1 or engine.last.joins is not None
    return engine.arms.capturable and alike and engine.arms.graphs != "off"


def _run(entries: Sequence[Entry]) -> None:
    for entry in entries:
        entry.run()
