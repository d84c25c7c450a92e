"""Gates of the engine: laws that must hold on a model, and mutations that must break each one.

A gate that a mutation of the engine passes would pass anything; `--red` runs the mutations and
calls such a gate vacuous. A mutation that cannot matter for the model and the tokens says nothing
about a gate: it is told with its reason, and counts neither way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.source import config_of, open_source
from dsv4.engine.state import DecodeState
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal
from lab.arrays import differing
from lab.engine_diff import engine_against_oracle
from lab.minted import model_of
from lab.mutations import cannot_matter, mutated
from lab.recorded import read_recorded
from lab.stored import RECORDED
from lab.tokenizer import open_tokenizer


@dataclass(frozen=True, slots=True)
class Finding:
    """What a gate found: whether it holds, and the first place where it does not.

    cannot_matter: why no gate could notice the mutation here, or nothing.
    """

    holds: bool
    detail: str
    cannot_matter: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """A model under a gate: how to load it, and ids to run, the first of them as a prompt."""

    folder: Path
    backend: str
    switches: Mapping[str, str | None]
    ids: np.ndarray
    prompt: int

    def engine(self, stages: int = 1, **more: str | None) -> Engine:
        """The engine of the model, with more switches."""
        arms = resolve_arms(**{**self.switches, **more})
        room = len(self.ids)
        return Engine.load(
            model_of(self.folder), (0,) * stages, backend=self.backend, max_seq=room, arms=arms
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """A law. red: mutations of the second of its two sides that must break it."""

    name: str
    summary: str
    check: Callable[[Bench, str | None], Finding]
    red: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A gate's verdict, and with red arms what it said of each mutation."""

    gate: str
    finding: Finding
    red: Mapping[str, Finding]

    @property
    def vacuous(self) -> tuple[str, ...]:
        """The mutations that passed, though they could matter."""
        return tuple(n for n, found in self.red.items() if found.holds and not found.cannot_matter)

    @property
    def passed(self) -> bool:
        """Whether the law holds and no mutation passed."""
        return self.finding.holds and not self.vacuous


def bench_of(
    folder: Path,
    *,
    backend: str,
    switches: Mapping[str, str | None],
    count: int = 33,
    words: bytes | None = None,
) -> Bench:
    """The model of a folder with the tokens of a text, or with recorded ids where there are some.

    Errors: Refusal, also for a text of fewer tokens.
    """
    if words is not None:
        tokens = open_tokenizer(folder, config_of(open_source(model_of(folder)))).encode(words)
        if len(tokens) < count:
            raise Refusal(
                f"gates were to run {count} tokens of a text\n  it has {len(tokens)}\n"
                f"  in the words of {folder}\n  give a longer text, or fewer --tokens"
            )
        ids = np.asarray(tokens[:count])
    elif (folder / RECORDED).is_file():
        ids = read_recorded(folder).ids[:count]
    else:
        vocabulary = config_of(open_source(model_of(folder))).vocab_size
        ids = np.random.default_rng(0).integers(0, vocabulary, count)
    return Bench(folder, backend, switches, ids, len(ids) // 2)


def run_gate(name: str, bench: Bench, *, red: bool) -> Outcome:
    """The verdict of one gate. Errors: Refusal for a name that is none, and as `Engine.load`."""
    gates = all_gates()
    if name not in gates:
        raise Refusal(
            f"the gate {name} was asked for\n  there are {', '.join(gates)}\n  in lab.gates\n"
            "  choose one of these"
        )
    gate = gates[name]
    mutations = {m: _red(gate, bench, m) for m in gate.red} if red else {}
    return Outcome(name, gate.check(bench, None), mutations)


def _red(gate: Gate, bench: Bench, mutation: str) -> Finding:
    config = config_of(open_source(model_of(bench.folder)))
    reason = cannot_matter(mutation, config, len(bench.ids))
    if reason:
        return Finding(True, "not run", reason)
    return gate.check(bench, mutation)


def all_gates() -> Mapping[str, Gate]:
    """The gates of the engine, then those of speculation."""
    from lab.spec_gates import SPEC_GATES

    return {**GATES, **SPEC_GATES}


def default_gates(bench: Bench) -> tuple[str, ...]:
    """The gates that a model can be put under: one about drafter rings needs a drafter."""
    from lab.spec_run import with_drafter

    drafts = with_drafter(bench.folder, bench.switches)["drafter"] not in (None, "off")
    return tuple(name for name in all_gates() if drafts or name != "rings")


@contextmanager
def under(mutation: str | None) -> Iterator[None]:
    """The fault of that name in every launch bound inside the `with`; none for None."""
    if mutation is None:
        yield
        return
    with mutated(mutation):
        yield


def _run(engine: Engine, bench: Bench, pieces: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Logits of a prompt (in pieces) and of every step after it, then all live cache classes."""
    state, at = engine.alloc_decode_state(), 0
    for size in pieces or (bench.prompt,):
        out = engine.prefill_with_cache(bench.ids[at : at + size], state)
        at += size
    rows = [out.logits, *(engine.decode_step(int(t), state) for t in bench.ids[at:])]
    return {"logits": np.stack(rows)} | dict(engine.cache_classes(state))


def same_outputs(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> Finding:
    """Whether all bytes of all outputs agree; otherwise the first place."""
    for name, left in a.items():
        right = b[name]
        differ = differing(left, right)
        if differ is None:
            found = (f"{x.dtype} {list(x.shape)}" for x in (left, right))
            return Finding(False, f"{name} is {' and '.join(found)}")
        if differ.any():
            place = tuple(int(i) for i in np.argwhere(differ)[0])
            one, other = (f"0x{x[place].tobytes()[::-1].hex()}" for x in (left, right))
            return Finding(
                False,
                f"{name}{list(place)} is {one} and {other}, {differ.sum()} of {left.size} differ",
            )
    return Finding(True, f"{len(a)} classes, {sum(x.nbytes for x in a.values())} bytes the same")


def _relaunch(bench: Bench, mutation: str | None) -> Finding:
    first, second = bench.engine(), bench.engine()
    want = _run(first, bench)
    with under(mutation):
        return same_outputs(want, _run(second, bench))


def _stages(bench: Bench, mutation: str | None) -> Finding:
    one, two = bench.engine(), bench.engine(stages=2)
    want = _run(one, bench)
    with under(mutation):
        return same_outputs(want, _run(two, bench))


def _dense(bench: Bench, mutation: str | None) -> Finding:
    want = _run(bench.engine(dense_arm="bf16"), bench)
    fp8 = bench.engine(dense_arm="fp8")
    with under(mutation):
        return same_outputs(want, _run(fp8, bench))


def _pieces(bench: Bench, mutation: str | None) -> Finding:
    engine = bench.engine(prefill_gemm="rows")
    want = _run(engine, bench)
    third = max(1, bench.prompt // 3)
    with under(mutation):
        return same_outputs(want, _run(engine, bench, (third, 1, bench.prompt - third - 1)))


def _rows(bench: Bench, mutation: str | None) -> Finding:
    """Rows of one step against single steps, after every warm-up of a block."""
    engine = bench.engine()
    for warm_up in range(4):
        start = bench.prompt + warm_up
        rows = min(8, len(bench.ids) - start)
        single, together = _prefilled(engine, bench, start, 1), _prefilled(engine, bench, start, 8)
        ids = bench.ids[start : start + rows].astype(np.int32)
        want = [engine.decode_step(int(t), single) for t in ids]
        with under(mutation):
            made = decode.step_logits(engine, together, ids)
        together.pos += rows
        found = same_outputs(
            {"logits": np.stack(want)} | dict(engine.cache_classes(single)),
            {"logits": made} | dict(engine.cache_classes(together)),
        )
        if not found.holds:
            return Finding(False, f"{rows} rows at {start}: {found.detail}")
    return found


def _prefilled(engine: Engine, bench: Bench, count: int, rows: int) -> DecodeState:
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(bench.ids[:count], state)
    return state


def _reprefill(bench: Bench, mutation: str | None) -> Finding:
    """Steps against prompts of every length, without quantisers: no staircase between them."""
    engine = bench.engine(quantisers="off")
    want = []
    for end in range(bench.prompt + 1, len(bench.ids) + 1):
        out = engine.forward(bench.ids[:end])
        assert out is not None
        want.append(out.logits)
    with under(mutation):
        rows = _run(engine, bench)["logits"][1:]
    error = np.abs(rows - np.stack(want)).max(axis=1) / np.abs(want).max(axis=1)
    worst = int(np.argmax(error))
    detail = f"largest {error[worst]:.2e} of a row at {bench.prompt + worst}, bound 1e-4"
    return Finding(bool(error[worst] <= 1e-4), detail)


def _oracle(bench: Bench, mutation: str | None) -> Finding:
    """Every sub-block against the float64 model on identical inputs."""
    with under(mutation):
        parts = engine_against_oracle(
            bench.folder, backend=bench.backend, switches=bench.switches, tokens=len(bench.ids)
        )
    worst = max(parts, key=lambda p: p.median)
    return Finding(worst.passed, f"{len(parts)} parts, worst {worst.name} {worst.median:.2e}")


def _cache_bytes(bench: Bench, mutation: str | None) -> Finding:
    """Bytes of a state on two stages against the placement's, which headers alone decide."""
    engine = bench.engine(stages=2)
    counted = [s.state_bytes for s in engine.placement.stages]
    held = list(engine.alloc_decode_state().cache_bytes)
    if mutation is not None:
        held[-1] += 4 * engine.config.head_dim  # one row more than was counted
    return Finding(held == counted, f"held {held}, counted {counted}")


_BYTES = ("one ulp in the gains", "swapped nibbles", "missing ape", "expert counted twice")
GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("oracle", "every sub-block on identical inputs", _oracle,
             ("swapped nibbles", "missing ape", "ape added twice", "no sink", "window one short",
              "inverse rotation missing", "expert counted twice")),
        Gate("decode", "steps equal prompts of every length", _reprefill,
             ("ring slot off by one", "block seen late", "window one short", "missing ape",
              "unsigned index weights", "inverse rotation missing")),
        Gate("relaunch", "two runs give the same bytes", _relaunch, _BYTES),
        Gate("rows", "rows of one step equal single steps", _rows,
             ("ring slot off by one", "block seen late", "window one short", *_BYTES)),
        Gate("pieces", "a prompt in any pieces leaves the same bytes", _pieces,
             ("ring slot off by one", "block seen late", "window one short", *_BYTES)),
        Gate("stages", "two stages give the bytes of one", _stages, _BYTES),
        Gate("dense", "FP8 matrices give the bytes of bf16 ones", _dense, _BYTES),
        Gate("cache-bytes", "caches take the bytes that were counted", _cache_bytes,
             ("a row more",)),
    )
}  # fmt: skip
