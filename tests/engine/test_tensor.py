"""Ranks that share every layer: the same bytes on each, and the laws inside their class."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.interleave import generate_together
from dsv4.engine.state import DecodeState
from dsv4.errors import DeviceError
from lab.engine_steps import step_tapes
from lab.generation import generate
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.engine.ranks import PROMPT, alone, assert_same, ids_of, ranked, remembered

FUSED = ("off", "on")
STEPS = 6
Sequence = tuple[np.ndarray, dict[str, np.ndarray]]


def run(engine: Engine, sizes: tuple[int, ...] = (PROMPT,), steps: int = STEPS) -> Sequence:
    """(logits after a prompt in pieces and after each step, what was remembered)."""
    ids, state, at = ids_of(PROMPT + steps), engine.alloc_decode_state(rows=1), 0
    for size in sizes:
        out = engine.prefill_with_cache(ids[at : at + size], state)
        at += size
    rows = [out.logits, *(engine.decode_step(int(t), state) for t in ids[PROMPT:])]
    return np.stack(rows), remembered(engine, state)


def after_prompt(engine: Engine, rows: int = 1) -> DecodeState:
    """A state behind the prompt."""
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(ids_of(PROMPT), state)
    return state


def assert_alike(a: Sequence, b: Sequence) -> None:
    assert same_bytes(a[0], b[0])
    assert_same(a[1], b[1])


@pytest.mark.parametrize("fused", FUSED)
def test_one_rank_gives_the_bytes_of_the_plain_engine(fused: str) -> None:
    one = ranked(world=1, fused=fused)
    assert one.arms.parallel == "tensor" and one.last.joins is None
    assert_alike(run(one), run(alone(fused=fused)))


def test_one_rank_takes_any_model() -> None:
    one = Engine.load(tiny_engine().source, backend="host", max_seq=60, parallel="tensor")
    assert generate(one, tokens(9), 4).tokens == generate(tiny_engine(), tokens(9), 4).tokens


def test_ranks_hold_half_of_what_is_cut_and_all_of_the_rest() -> None:
    engine, one = ranked(), alone()
    for n, stage in enumerate(engine.stages):
        whole, part = one.last.layers[2], stage.layers[2]
        assert part.wq_b.rows * 2 == whole.wq_b.rows and part.wo_b.columns * 2 == whole.wo_b.columns
        assert part.indexer is not None and whole.indexer is not None
        assert part.indexer.wq_b.rows == whole.indexer.wq_b.rows
        half = whole.experts.w2.codes.shape[2] // 2
        found = part.experts.w2.codes
        assert np.array_equal(found, whole.experts.w2.codes[:, :, n * half : (n + 1) * half])
        tokens_each = one.last.head.shape[0] // 2
        assert np.array_equal(stage.head, one.last.head[n * tokens_each : (n + 1) * tokens_each])
        assert stage.loaded_bytes < 0.75 * one.last.loaded_bytes
        assert stage.loaded_bytes == engine.placement.stages[n].weight_bytes + (
            engine.placement.stages[n].table_bytes
        )


@pytest.mark.parametrize("layout", ["official", "nvfp4"])
@pytest.mark.parametrize("fused", FUSED)
def test_all_ranks_end_a_step_with_the_same_bytes(layout: str, fused: str) -> None:
    engine = ranked(layout=layout, fused=fused)
    state = after_prompt(engine, rows=3)
    decode.step_logits(engine, state, ids_of(3))
    program = decode.program_of(engine, state, 3, 160)
    first, second = (np.asarray(end) for end in program.ends)
    assert first is not second and same_bytes(first, second) and np.isfinite(first).all()
    state.pos += 3
    remembered(engine, state)


@pytest.mark.parametrize("fused", FUSED)
# Of rows a join sees only how large a part is, so these stand for the counts between.
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_rows_of_one_step_give_the_bytes_of_single_steps(count: int, fused: str) -> None:
    engine, ids = ranked(fused=fused), ids_of(count, seed=count)
    single, together = after_prompt(engine), after_prompt(engine, rows=8)
    rows = [engine.decode_step(int(t), single) for t in ids]
    made = decode.step_logits(engine, together, ids)
    assert same_bytes(made, np.stack(rows))
    chosen = decode.step_greedy(engine, together, ids)
    assert chosen.tolist() == [int(row.argmax()) for row in rows]
    together.pos += count
    assert_same(remembered(engine, single), remembered(engine, together))


@pytest.mark.parametrize("fused", FUSED)
def test_a_committed_prefix_leaves_the_bytes_of_plain_steps(fused: str) -> None:
    engine = ranked(fused=fused, graphs="on")
    plain, tried = after_prompt(engine), after_prompt(engine)
    vstate, ids = engine.alloc_verify_state(rows=4), ids_of(24, seed=5)
    rows = [engine.decode_step(int(t), plain) for t in ids[:8]]
    at, said = 0, []
    # The third round of a width replays what the second one recorded.
    for kept in (2, 1, 3, 2):
        wrong = ids_of(4 - kept, seed=kept)
        out = engine.verify_batch(
            np.concatenate([ids[at : at + kept], wrong]), tried, vstate, want_logits=True
        )
        said += [*out.logits[:kept]]
        assert out.argmax[:kept].tolist() == [int(r.argmax()) for r in rows[at : at + kept]]
        engine.commit_verify(tried, vstate, kept)
        at += kept
    assert same_bytes(np.stack(said), np.stack(rows))
    assert_same(remembered(engine, plain), remembered(engine, tried))
    following = [engine.decode_step_greedy(int(t), plain) for t in ids[8:11]]
    assert engine.verify_batch(ids[8:11], tried, vstate).argmax.tolist() == following


@pytest.mark.parametrize("branches", ["off", "on"])
@pytest.mark.parametrize("fused", FUSED)
def test_replayed_steps_give_the_bytes_of_launches(fused: str, branches: str) -> None:
    replayed = ranked(fused=fused, graphs="on", branches=branches)
    assert decode.uses_graphs(replayed)
    assert_alike(run(replayed), run(ranked(fused=fused, graphs="off")))


def test_fused_launches_give_the_bytes_of_single_ones() -> None:
    assert_alike(run(ranked(fused="on")), run(ranked(fused="off")))


@pytest.mark.parametrize("sizes", [(1, 21), (9, 13), (21, 1), (4, 10, 8)], ids=str)
def test_a_prompt_in_any_pieces_leaves_the_same_bytes(sizes: tuple[int, ...]) -> None:
    engine = ranked(prefill_gemm="rows")
    assert_alike(run(engine, sizes, steps=1), run(engine, steps=1))


def test_steps_leave_the_bytes_of_a_prompt_by_the_same_products() -> None:
    engine, ids = ranked(prefill_gemm="rows"), ids_of(PROMPT + 5)
    whole, stepped = engine.alloc_decode_state(), after_prompt(engine)
    out = engine.prefill_with_cache(ids, whole)
    row = [engine.decode_step(int(t), stepped) for t in ids[PROMPT:]][-1]
    assert same_bytes(out.logits, row)
    assert_same(remembered(engine, whole), remembered(engine, stepped))


@pytest.mark.parametrize("mode", ["shuffle", "check"])
def test_ranks_on_watched_devices_find_no_fault_and_give_the_same_bytes(mode: str) -> None:
    ids, made = ids_of(12), []
    for engine in (ranked(mode=mode), ranked()):
        state = engine.alloc_decode_state(rows=1)
        out = engine.prefill_with_cache(ids[:10], state).logits
        steps = [engine.decode_step(int(t), state) for t in ids[10:]]
        made.append((np.stack([out, *steps]), remembered(engine, state)))
    assert_alike(*made)


def test_sequences_take_turns_on_ranks() -> None:
    engine, prompts = ranked(graphs="on"), [[5, 9, 1, 200], [3, 3, 7], [11, 250, 4, 8, 9]]
    together = generate_together(engine, prompts, 5).tokens
    assert [tuple(t) for t in together] == [generate(engine, p, 5).tokens for p in prompts]


@pytest.mark.parametrize(
    "switches",
    [
        {"dots_arm": "f64"},
        {"decode_path": "device-hostmath"},
        {"decode_path": "legacy"},
        {"profile": "sync"},
    ],
    ids=str,
)
def test_other_arms_choose_the_largest_logit_as_well(switches: dict[str, str]) -> None:
    engine = ranked(**switches)
    rows, greedy = after_prompt(engine), after_prompt(engine)
    for token in ids_of(3, seed=2):
        row = engine.decode_step(int(token), rows)
        assert engine.decode_step_greedy(int(token), greedy) == int(row.argmax())
    assert_same(remembered(engine, rows), remembered(engine, greedy))


def test_a_rank_that_does_not_come_fails_the_step_and_the_next_one_is_whole() -> None:
    engine = ranked(dense_input="fp8")
    want = run(engine)
    state = after_prompt(engine)
    engine.decode_step(5, state)
    (tape,) = [t for t in step_tapes(engine, state, 1) if t.device is engine.last.device][:1]
    with pytest.raises(DeviceError, match="(?s)rank 1 on host.*rank 0 did not come"):
        # As if a launch of the other rank had failed.
        tape.run()
        engine.decode_step(6, state)
    assert "rank 0 did not come" not in state.poisoned and "rank 1" in state.poisoned
    assert_alike(run(engine), want)
