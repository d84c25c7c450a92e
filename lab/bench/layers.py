"""One layer of each kind, on the launches that a whole step binds for it.

The lists that all layers of a ratio share, the embedding and the head belong to the step and are
left out; a hyper-connection's way into the next layer belongs to the layer before it, as launched.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.checkpoint.config import LayerClass
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.prefill import bucket
from dsv4.engine.rows import Rows
from dsv4.engine.state import DecodeState
from dsv4.engine.tape import Entry
from dsv4.errors import Refusal
from dsv4.runtime.device import Graph
from lab.bench.clocks import around
from lab.bench.floors import layer_bytes
from lab.bench.measured import Measured, Pair, pair_of
from lab.bench.roofs import Roofs
from lab.bench.sampling import Repeated, replayed, turn_by_turn
from lab.bench.steps import Arm, facts

KINDS: Final[Mapping[LayerClass, str]] = {
    "window": "window only",
    "fine": "ratio 4",
    "coarse": "ratio 128",
}
_SHARED: Final = frozenset({"entry", "lists"})
_FEWEST_LAYERS: Final = 16


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of one kind, ready to be sampled; sizes and launches are of one layer."""

    engine: Engine
    kind: LayerClass
    layers: tuple[int, ...]
    again: Repeated
    size_bytes: float
    launches: float
    reasons: tuple[str, ...]
    digest: str


def bench_layers(
    engines: Sequence[Engine],
    arms: Sequence[Arm],
    roofs: Roofs | None,
    *,
    model: str,
    context: int,
    rows: int = 1,
    samples: int = 15,
    seed: int = 0,
) -> tuple[list[Measured], list[Pair]]:
    """Each kind of layer under each arm, sampled turn by turn, and the verdicts of the second arm.

    Errors: Refusal for several devices, or a path whose steps are not bound as one graph.
    """
    made = [open_layers(e, context=context, rows=rows, seed=seed) for e in engines]
    device = engines[0].last.device
    found: list[Measured] = []
    pairs: list[Pair] = []
    for kind in made[0]:
        sides = [m[kind] for m in made]
        again = [s.again for s in sides]
        timings, clock = around(device, functools.partial(turn_by_turn, again, samples))
        both = []
        for side, arm, timing in zip(sides, arms, timings, strict=True):
            case = f"{KINDS[kind]}, {model} context {context} rows {rows}"
            both.append(
                Measured.of_engine(
                    facts(side.engine, "layer", case, seed, reasons=side.reasons,
                          digest=side.digest),
                    arm,
                    timing,
                    clock,
                    size_bytes=round(side.size_bytes),
                    roof=roofs.read if roofs else None,
                    launches=side.again.launches,
                    more={
                        "model": model,
                        "kind": kind,
                        "layers": list(side.layers),
                        "position": context,
                        "rows": rows,
                        "launches": side.launches,
                        "floor_bytes": layer_bytes(side.engine.config, rows)[kind],
                    },
                )
            )  # fmt: skip
        found += both
        pair = pair_of(both)
        pairs += [pair] if pair else []
    return found, pairs


def open_layers(
    engine: Engine, *, context: int, rows: int, seed: int = 0
) -> dict[LayerClass, Layers]:
    """Every kind of layer that the model has, behind a prompt of random tokens, proved: a replay
    leaves the streams that the same launches leave when they are sent one by one.
    """
    if not engine.arms.capturable or len({id(s.device) for s in engine.stages}) > 1:
        raise Refusal(
            f"layers were to be timed on {len(engine.stages)} stages under"
            f" {engine.arms.to_json()['decode_path']}\n"
            "  their launches must fit into a graph of one device\n  in lab.bench.layers\n"
            "  use the device path with quantisers on, on one device"
        )
    tokens = np.random.default_rng(seed).integers(0, engine.config.vocab_size, context + rows)
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(tokens[:context], state)
    ids = tokens[context:].astype(np.int32)
    program, entries = _by_layer(engine, state, rows)
    found = {}
    for kind in KINDS:
        numbers = tuple(n for n in entries if engine.config.layer_class(n) == kind)
        if numbers:
            found[kind] = _layers(engine, state, program, ids, kind, numbers, entries)
    return found


def _by_layer(
    engine: Engine, state: DecodeState, rows: int
) -> tuple[decode.Program, dict[int, list[Entry]]]:
    """A step bound for its layers: the program, and the launches of each layer."""
    ends: dict[int, tuple[Rows, int]] = {}

    def after(run: Rows, layer: int, streams: Any) -> bool:
        ends[layer] = (run, len(run.tape.entries))
        return True

    bound = bucket(state.pos + rows, engine.max_seq)
    program = decode.bind_trunk(engine, state, state.workspaces, state.control, rows, bound, after)
    found = {}
    begin, last = 0, None
    for layer, (run, end) in ends.items():
        begin = begin if run.tape is last else 0
        own = run.tape.entries[begin:end]
        found[layer] = [e for e in own if e.phase not in _SHARED]
        begin, last = end, run.tape
    return program, found


def _layers(
    engine: Engine,
    state: DecodeState,
    program: decode.Program,
    ids: np.ndarray,
    kind: LayerClass,
    numbers: tuple[int, ...],
    entries: Mapping[int, Sequence[Entry]],
) -> Layers:
    device = engine.last.device
    own = [e for n in numbers for e in entries[n]]
    rounds = max(1, -(-_FEWEST_LAYERS // len(numbers))) if device.backend == "cuda" else 1

    def streams_after(run: Any) -> str:
        # A whole step first: the same streams, caches and hand-overs before either way.
        decode.write_control(engine, state, ids)
        program.run()
        run()
        device.synchronize()
        return hashlib.sha256(device.to_numpy(program.streams).tobytes()).hexdigest()

    def one_by_one() -> None:
        for _ in range(rounds):
            for entry in own:
                entry.run()

    wanted = streams_after(one_by_one)
    graph = _graph(device, engine, numbers, entries, rounds)
    got = streams_after(graph.replay)
    why = "a replay of the layers left other streams than their launches sent one by one"
    size = sum(e.size_bytes for e in own)
    return Layers(
        engine=engine,
        kind=kind,
        layers=numbers,
        again=replayed(device, graph.replay, rounds * len(numbers), size),
        size_bytes=size / len(numbers),
        launches=len(own) / len(numbers),
        reasons=() if got == wanted else (why,),
        digest=got,
    )


def _graph(
    device: Any,
    engine: Engine,
    numbers: Sequence[int],
    entries: Mapping[int, Sequence[Entry]],
    rounds: int,
) -> Graph:
    """The layers as the engine records them, with branches beside each other if it does so."""
    from dsv4.engine.tape import Tape

    tape = Tape(device, keep=True, entries=[e for n in numbers for e in entries[n]])
    with device.capture() as graph:
        for _ in range(rounds):
            tape.record(engine.arms.branches)
    recorded: Graph = graph
    return recorded
