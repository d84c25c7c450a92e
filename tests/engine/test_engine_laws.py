"""What must be identical to what, byte for byte, on every path of the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from dsv4.errors import StateError
from dsv4.runtime.hostdevice import HostDevice
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.goldens import golden_folder

# A prompt that wraps the window of 8, ends blocks of 4 and 8, and leaves some open.
PROMPT, STEPS = 13, 9
QUANTISERS = ("on", "off")


def run(engine: Engine, sizes: tuple[int, ...] = (PROMPT,)) -> tuple[np.ndarray, dict]:
    """(logits after the prompt and after each step, caches) of a sequence in pieces."""
    ids, state, at = tokens(PROMPT + STEPS), engine.alloc_decode_state(), 0
    for size in sizes:
        out = engine.prefill_with_cache(ids[at : at + size], state)
        at += size
    rows = [out.logits, *(engine.decode_step(int(t), state) for t in ids[PROMPT:])]
    return np.stack(rows), dict(engine.cache_classes(state))


def assert_same(a: tuple[np.ndarray, dict], b: tuple[np.ndarray, dict]) -> None:
    assert same_bytes(a[0], b[0])
    assert a[1].keys() == b[1].keys()
    for name, array in a[1].items():
        assert same_bytes(array, b[1][name]), name


@pytest.mark.parametrize("quantisers", QUANTISERS)
def test_a_relaunch_gives_the_same_bytes(quantisers: str) -> None:
    engine = tiny_engine(quantisers=quantisers)
    assert_same(run(engine), run(engine))


@pytest.mark.parametrize("quantisers", QUANTISERS)
@pytest.mark.parametrize("split", ["1", "2", "3", "1,3"])
def test_stages_give_the_bytes_of_one(split: str, quantisers: str) -> None:
    parts = len(split.split(",")) + 1
    engine = tiny_engine(stages=parts, split_at=split, quantisers=quantisers)
    assert len(engine.stages) == parts and [len(s.layers) for s in engine.stages].count(0) == 0
    assert_same(run(engine), run(tiny_engine(quantisers=quantisers)))


@pytest.mark.parametrize("dense_input", ["bf16", "fp8"])
def test_fp8_matrices_give_the_bytes_of_bf16_matrices(dense_input: str) -> None:
    fp8 = tiny_engine(dense_arm="fp8", dense_input=dense_input)
    bf16 = tiny_engine(dense_arm="bf16", dense_input=dense_input)
    assert fp8.stages[0].layers[0].wq_a.bf16 is None
    assert bf16.stages[0].layers[0].wq_a.fp8 is None
    assert_same(run(fp8), run(bf16))


@pytest.mark.parametrize("sizes", [(1, 12), (5, 8), (12, 1), (3, 4, 1, 5)], ids=str)
@pytest.mark.parametrize("quantisers", QUANTISERS)
def test_a_prompt_in_any_pieces_leaves_the_same_bytes(
    sizes: tuple[int, ...], quantisers: str
) -> None:
    engine = tiny_engine(prefill_gemm="rows", quantisers=quantisers)
    assert_same(run(engine, sizes), run(engine))


@pytest.mark.parametrize("quantisers", QUANTISERS)
def test_steps_leave_the_bytes_of_a_prompt_by_the_same_products(quantisers: str) -> None:
    engine = tiny_engine(prefill_gemm="rows", quantisers=quantisers)
    ids = tokens(PROMPT + STEPS)
    whole, stepped = engine.alloc_decode_state(), engine.alloc_decode_state()
    out = engine.prefill_with_cache(ids, whole)
    engine.prefill_with_cache(ids[:PROMPT], stepped)
    row = [engine.decode_step(int(t), stepped) for t in ids[PROMPT:]][-1]
    assert same_bytes(out.logits, row)
    for (name, a), (_, b) in zip(
        engine.cache_classes(whole), engine.cache_classes(stepped), strict=True
    ):
        assert same_bytes(a, b), name


@pytest.mark.parametrize("quantisers", QUANTISERS)
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("start", [1, 6, 8, 13])
def test_rows_of_one_step_give_the_bytes_of_single_steps(
    start: int, count: int, quantisers: str
) -> None:
    engine = tiny_engine(quantisers=quantisers)
    ids = tokens(start + count + 1)
    single, together = engine.alloc_decode_state(), engine.alloc_decode_state(rows=8)
    for state in (single, together):
        engine.prefill_with_cache(ids[:start], state)
    rows = [engine.decode_step(int(t), single) for t in ids[start : start + count]]
    made = decode.step_logits(engine, together, ids[start : start + count].astype(np.int32))
    together.pos += count
    assert same_bytes(made, np.stack(rows))
    for (name, a), (_, b) in zip(
        engine.cache_classes(single), engine.cache_classes(together), strict=True
    ):
        assert same_bytes(a, b), name


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_rows_that_are_not_kept_leave_no_trace(kept: int) -> None:
    engine = tiny_engine()
    ids, others = tokens(30), tokens(30, seed=1)
    plain, tried = engine.alloc_decode_state(), engine.alloc_decode_state(rows=8)
    for state in (plain, tried):
        engine.prefill_with_cache(ids[:11], state)
    guess = np.concatenate([ids[11 : 11 + kept], others[: 8 - kept]]).astype(np.int32)
    decode.step_logits(engine, tried, guess)
    tried.pos += kept
    for token in ids[11 : 11 + kept]:
        engine.decode_step(int(token), plain)
    for token in ids[11 + kept : 24]:
        a, b = engine.decode_step(int(token), plain), engine.decode_step(int(token), tried)
        assert same_bytes(a, b)
    for (name, a), (_, b) in zip(
        engine.cache_classes(plain), engine.cache_classes(tried), strict=True
    ):
        assert same_bytes(a, b), name


@pytest.mark.parametrize("path", ["device", "device-hostmath", "legacy"])
def test_the_greedy_step_takes_the_first_largest_logit(path: str) -> None:
    switches = {} if path != "legacy" else {"expert_arm": "bf16_dequant"}
    engine = tiny_engine(decode_path=path, **switches)
    ids = tokens(12)
    a, b = engine.alloc_decode_state(), engine.alloc_decode_state()
    for state in (a, b):
        engine.prefill_with_cache(ids[:9], state)
    for token in ids[9:]:
        row = engine.decode_step(int(token), a)
        assert engine.decode_step_greedy(int(token), b) == int(np.argmax(row))


def test_a_step_recorded_as_a_graph_replays_to_the_bytes_of_launches() -> None:
    engine = tiny_engine()
    ids = tokens(PROMPT + STEPS)
    eager, replayed = engine.alloc_decode_state(), engine.alloc_decode_state()
    for state in (eager, replayed):
        engine.prefill_with_cache(ids[:PROMPT], state)
    graph = decode.record_step(engine, replayed, 1, "logits")
    for token in ids[PROMPT:]:
        row = engine.decode_step(int(token), eager)
        decode.write_control(engine, replayed, np.array([token], np.int32))
        graph.replay()
        replayed.pos += 1
        head = decode.head_of(engine, replayed, 1, "logits")
        assert same_bytes(row, engine.last.device.to_numpy(head.result)[0])


def test_replayed_steps_give_the_bytes_of_launched_ones() -> None:
    replayed = tiny_engine(graphs="on")
    assert decode.uses_graphs(replayed) and not decode.uses_graphs(tiny_engine())
    assert_same(run(replayed), run(tiny_engine()))
    assert_same(run(tiny_engine(graphs="on", stages=2)), run(tiny_engine()))


@pytest.mark.parametrize("quantisers", QUANTISERS)
def test_threads_in_any_order_over_poisoned_outputs_give_the_same_bytes(quantisers: str) -> None:
    shuffled = HostDevice(mode="shuffle", seed=7)
    arms = resolve_arms({}, quantisers=quantisers)
    engine = Engine.load(golden_folder("tiny-s"), (shuffled,), max_seq=60, arms=arms)
    assert_same(run(engine), run(tiny_engine(quantisers=quantisers)))


@pytest.mark.stress
def test_a_step_is_legal_up_to_the_last_of_a_million_positions() -> None:
    plan = plan_mint("tiny", "official", seed=1)
    plan = replace(plan, config=replace(plan.config, max_seq_len=1 << 20))
    engine = Engine.load(plan, backend="host", max_seq=1 << 20, prefill_chunk=8)
    state = engine.alloc_decode_state()
    engine.prefill_with_cache([1, 2, 3], state)
    state.pos = (1 << 20) - 2
    for _ in range(2):
        assert np.isfinite(engine.decode_step(5, state)).all()
    with pytest.raises(StateError, match="1048576 positions"):
        engine.decode_step(5, state)


def test_a_checked_run_finds_no_fault_and_gives_the_same_bytes() -> None:
    checked = Engine.load(golden_folder("tiny-s"), (HostDevice(mode="check"),), max_seq=60)
    assert_same(run(checked), run(tiny_engine()))
