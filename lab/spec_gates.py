"""Gates of speculation: streams, states and rings against plain decoding, and faults in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from dsv4.engine import engine as engine_module
from dsv4.engine import speculate as loop_module
from dsv4.engine.drafting import Drafter, DsparkDrafter, NextnDrafter, own_drafter
from dsv4.engine.engine import Engine
from dsv4.engine.state import LayerCache, new_layer_cache
from dsv4.errors import Refusal
from dsv4.spec import F32
from dsv4.speculation.accept import accept_prefix
from lab.gates import Bench, Finding, Gate, same_outputs, under
from lab.generation import generate
from lab.mutations import MUTATIONS
from lab.scripted import ScriptedDrafter
from lab.spec_run import first_difference, with_drafter

_BLOCK = 3
"""Drafts of a scripted proposal."""
_ROWS = _BLOCK + 1


def spec_gate(bench: Bench, mutation: str | None) -> Finding:
    """Scripted runs at every depth, with every number of right drafts, against plain tokens."""
    engine, count = bench.engine(), len(bench.ids) - bench.prompt
    prompt = [int(t) for t in bench.ids[: bench.prompt]]
    want = generate(engine, prompt, count).tokens
    emitted = 0
    for depth in range(1, _ROWS + 1):
        drafter = ScriptedDrafter(engine, _BLOCK, want, len(prompt), lambda n: n * 2 % _ROWS)
        with _fault(mutation):
            run = loop_module.speculate(
                engine, prompt, count, drafter=drafter, depth_cap=depth,
                vstate=engine.alloc_verify_state(_ROWS),
            )  # fmt: skip
        place = first_difference(want, run.tokens)
        if place is not None:
            return Finding(False, f"depth {depth}: the stream differs from token {place} on")
        emitted += len(run.tokens)
    reason = ""
    if mutation is not None and mutation in MUTATIONS:
        reason = same_tokens(engine, prompt, want, mutation)
    return Finding(True, f"{emitted} tokens at {_ROWS} depths the same", reason)


def same_tokens(
    engine: Engine, prompt: Sequence[int], following: Sequence[int], mutation: str
) -> str:
    """Why no stream shows a fault: with it steps or rounds say the same tokens, by other logits.

    Empty where tokens differ, or where all logits are the same, too: then nothing shows that there
    is a fault.
    """
    ids = np.array([*prompt, *following[:-1]])
    for name, rows_of in (("plain steps", _step_rows), (f"rounds of {_ROWS} rows", _round_rows)):
        clean, faulty = (rows_of(engine, ids, len(prompt), m) for m in (None, mutation))
        if not np.array_equal(clean.argmax(axis=1), faulty.argmax(axis=1)):
            return ""
        if not np.array_equal(clean, faulty):
            return f"{name} with it say the same {len(clean)} tokens, by other logits"
    return ""


def _step_rows(engine: Engine, ids: np.ndarray, prompt: int, mutation: str | None) -> np.ndarray:
    """Logits [n,V] of plain steps behind a prompt, which has no fault."""
    state = engine.alloc_decode_state()
    engine.prefill_with_cache(ids[:prompt], state)
    with _fault(mutation):
        return np.stack([engine.decode_step(int(t), state) for t in ids[prompt:]])


def _round_rows(engine: Engine, ids: np.ndarray, prompt: int, mutation: str | None) -> np.ndarray:
    """The same of rounds, all of whose rows are kept."""
    state, vstate = engine.alloc_decode_state(rows=1), engine.alloc_verify_state(_ROWS)
    engine.prefill_with_cache(ids[:prompt], state)
    made = []
    with _fault(mutation):
        for at in range(prompt, len(ids), _ROWS):
            out = engine.verify_batch(ids[at : at + _ROWS], state, vstate, want_logits=True)
            engine.commit_verify(state, vstate, len(out.argmax))
            assert out.logits is not None
            made.append(out.logits)
    return np.concatenate(made)


def state_gate(bench: Bench, mutation: str | None) -> Finding:
    """Rounds of 1.. rows, some kept, against single steps: logits, tokens and caches.

    Errors: Refusal when no round fits behind the prompt.
    """
    _require_rounds(bench, "state", bench.prompt + _ROWS)
    engine, cases = bench.engine(), 0
    wrong = (bench.ids + 1) % engine.config.vocab_size
    with _fault(mutation):
        # A fault in how states are laid out must be there when they are.
        tried = engine.alloc_decode_state(rows=1)
        vstate = engine.alloc_verify_state(_ROWS)
        engine.prefill_with_cache(bench.ids[:1], tried)
    plain = engine.alloc_decode_state(rows=1)
    engine.prefill_with_cache(bench.ids[:1], plain)
    for token in bench.ids[1 : bench.prompt]:
        for state in (plain, tried):
            engine.decode_step(int(token), state)
    rounds = [(t, k) for t in range(_ROWS, 0, -1) for k in range(1, t + 1)]
    while plain.pos + _ROWS <= len(bench.ids):
        rows, keep = rounds[cases % len(rounds)]
        start, cases = plain.pos, cases + 1
        toks = np.where(np.arange(rows) < keep, bench.ids[start : start + rows],
                        wrong[start : start + rows])  # fmt: skip
        with _fault(mutation):
            out = engine.verify_batch(toks, tried, vstate, want_logits=True)
            kept = rows if mutation == "missing rollback" else keep
            engine.commit_verify(tried, vstate, kept)
        want = np.stack([engine.decode_step(int(t), plain) for t in toks[:keep]])
        assert out.logits is not None
        found = same_outputs(
            {"logits": want} | dict(engine.cache_classes(plain)),
            {"logits": out.logits[:keep]} | dict(engine.cache_classes(tried)),
        )
        if not found.holds:
            return Finding(False, f"{rows} rows at {start}, {keep} kept: {found.detail}")
    return Finding(True, f"{cases} rounds, at the end {found.detail}")


def rings_gate(bench: Bench, mutation: str | None) -> Finding:
    """The drafter's rings after rounds against those of a run that wrote every position alone.

    Errors: Refusal when nothing drafts, or no round fits behind the prompt.
    """
    engine = bench.engine(drafter=with_drafter(bench.folder, bench.switches)["drafter"])
    if not engine.verify_tmax:
        raise Refusal(
            f"the gate rings was asked for on {bench.folder}\n"
            "  nothing behind its trunk drafts\n  by its headers\n"
            "  name another --model, or leave the gate out"
        )
    _require_rounds(bench, "rings", bench.prompt + engine.verify_tmax + 1)
    plain, tried = own_drafter(engine), own_drafter(engine)
    one, many = engine.alloc_decode_state(rows=1), engine.alloc_decode_state(rows=1)
    vstate, ids = engine.alloc_verify_state(), bench.ids
    prompt = [int(t) for t in ids[: bench.prompt]]
    for drafter, state in ((plain, one), (tried, many)):
        drafter.prime(prompt, state)
        drafter.propose(int(ids[bench.prompt]), bench.prompt - 1)
    rounds = 0
    while many.pos + vstate.tmax < len(ids):
        start = many.pos
        keep, rounds = 1 + rounds % vstate.tmax, rounds + 1
        toks = [int(t) for t in ids[start : start + vstate.tmax]]
        toks[keep:] = [(t + 1) % engine.config.vocab_size for t in toks[keep:]]
        following = int(ids[start + keep])
        with _fault(mutation):
            engine.verify_batch(toks, many, vstate, tried.taps)
            engine.commit_verify(many, vstate, keep)
            _accept(tried, toks, keep, start, mutation)
            _propose(tried, following, mutation)
        for i in range(keep):
            assert plain.taps is not None
            engine.decode_step_tap(toks[i], one, plain.taps, 0)
            plain.accept(toks[i : i + 1], start + i)
            plain.propose(toks[i + 1] if i + 1 < keep else following, start + i)
        found = same_outputs(rings_of(engine, plain), rings_of(engine, tried))
        if not found.holds:
            return Finding(False, f"round {rounds} at {start}: {found.detail}")
    return Finding(True, f"{rounds} rounds, at the end {found.detail}")


def _require_rounds(bench: Bench, gate: str, least: int) -> None:
    """Nothing, if there are tokens for a round: without one a gate would say nothing."""
    if len(bench.ids) < least:
        raise Refusal(
            f"the gate {gate} was asked for with {len(bench.ids)} tokens\n"
            f"  its first round ends at token {least}\n  on {bench.folder}\n"
            "  give more --tokens, or a longer --text"
        )


def _accept(drafter: Drafter, toks: list[int], keep: int, start: int, fault: str | None) -> None:
    if fault == "wrong tap row":
        assert drafter.taps is not None
        rows = drafter.taps.rows
        rows[: len(toks) - 1] = rows[1 : len(toks)].copy()
    drafter.accept(toks if fault == "rejected rows written" else toks[:keep], start)


def _propose(drafter: Drafter, following: int, fault: str | None) -> None:
    newest = drafter.dstate.next - 1 if isinstance(drafter, DsparkDrafter) else None
    if isinstance(drafter, NextnDrafter):
        newest = drafter.mstate.next + len(drafter.mstate.following)
    assert newest is not None, "a model's own drafter knows its newest position"
    drafter.propose(following, newest)


def rings_of(engine: Engine, drafter: Drafter) -> Mapping[str, np.ndarray]:
    """What a drafter remembers, and up to where."""
    if isinstance(drafter, DsparkDrafter):
        found = dict(engine.dspark_ring_classes(drafter.dstate))
        return found | {"next": np.array([drafter.dstate.next], np.float32)}
    assert isinstance(drafter, NextnDrafter)
    mstate, window = drafter.mstate, engine.config.window_size
    recent = np.arange(max(0, mstate.next - window), mstate.next)
    ring = engine.last.device.to_numpy(mstate.cache.kvc)[recent % mstate.cache.ring]
    return {"mtp.ring": ring, "next": np.array([mstate.next], np.float32)}


@contextmanager
def _fault(name: str | None) -> Iterator[None]:
    """The fault of that name: one of launches, of a state's layout, or of the loop."""
    if name is not None and name in _PATCHES:
        module, attribute, fault = _PATCHES[name]
        original = getattr(module, attribute)
        setattr(module, attribute, fault)
        try:
            yield
        finally:
            setattr(module, attribute, original)
        return
    with under(None if name in _HERE else name):
        yield


def _short_ring(
    device: Any, config: Any, ratio: int, max_seq: int, rows: int, *more: Any
) -> LayerCache:
    """A cache whose ring is a window and no more: a round overwrites what its rows still see."""
    made = new_layer_cache(device, config, ratio, max_seq, rows, *more)
    window = config.window_size
    kvc = device.empty((window + made.cap, config.head_dim), F32)
    kvc[...] = 0.0
    return replace(made, ring=window, kvc=kvc)


def _one_too_many(candidates: Any, verified: Any) -> int:
    return min(len(verified) - 1, accept_prefix(candidates, verified) + 1)


_PATCHES: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "early ring write": (engine_module, "new_layer_cache", _short_ring),
    "a draft too many": (loop_module, "accept_prefix", _one_too_many),
}
# Faults that the gates themselves commit.
_HERE = ("missing rollback", "wrong tap row", "rejected rows written")

SPEC_GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("spec", "speculative streams equal plain ones", spec_gate,
             ("a draft too many", "stale pending row", "missing ape", "window one short")),
        Gate("state", "rounds leave the bytes of single steps", state_gate,
             ("stale pending row", "early ring write", "missing rollback", "missing ape",
              "block seen late", "window one short")),
        Gate("rings", "drafter rings equal those of single steps", rings_gate,
             ("wrong tap row", "rejected rows written")),
    )
}  # fmt: skip
