"""Ranks on two cards, writing into each other's memory: the laws of their class, and its bound."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import decode, joins
from dsv4.engine.engine import Engine
from dsv4.errors import DeviceError
from lab import testing
from lab.engine_steps import step_tapes
from lab.ranks import sub_blocks
from tests.engine.engines import same_bytes
from tests.engine.ranks import assert_same, remembered

pytestmark = pytest.mark.gpu2
PROMPT, REPLAYS = 150, 10_000


@pytest.fixture(autouse=True)
def cards() -> None:
    if testing.cuda().xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")


@functools.lru_cache(maxsize=4)
def flash(parallel: str, layout: str = "official", **switches: str) -> Engine:
    """Layers of every kind at full width, on one card or shared by two."""
    plan = plan_mint("flash", layout, seed=3, layers=4, experts=16)
    devices = (0, 1) if parallel == "tensor" else (0,)
    return Engine.load(
        plan, devices, backend="cuda", max_seq=512, parallel=parallel, drafter="off", **switches
    )


def ids_of(count: int, seed: int = 0) -> np.ndarray:
    """Token ids of the full vocabulary."""
    return np.random.default_rng(seed).integers(0, 129280, count).astype(np.int32)


def after_prompt(engine: Engine, rows: int = 1):
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(ids_of(PROMPT), state)
    return state


@pytest.mark.parametrize("layout", ["official", "nvfp4"])
@pytest.mark.parametrize("rows", [1, 8, 200])
def test_every_sub_block_is_within_its_bound_of_one_card(layout: str, rows: int) -> None:
    arms = dict(layout=layout, prefill_gemm="rows")
    found = sub_blocks(flash("layers", **arms), flash("tensor", **arms), rows=rows, seed=rows)
    assert len(found) == 8 and all(s.alike and s.worst <= 1.0 for s in found), found


@pytest.mark.parametrize("dependent", ["off", "on"])
@pytest.mark.parametrize("fused", ["off", "on"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_rows_of_one_step_give_the_bytes_of_single_steps(
    count: int, fused: str, dependent: str
) -> None:
    engine = flash("tensor", fused=fused, dependent_launch=dependent)
    ids, single, together = ids_of(count, seed=count), after_prompt(engine), after_prompt(engine, 8)
    rows = [engine.decode_step(int(t), single) for t in ids]
    made = decode.step_logits(engine, together, ids)
    assert same_bytes(made, np.stack(rows)) and np.isfinite(made).all()
    chosen = decode.step_greedy(engine, together, ids)
    assert chosen.tolist() == [int(row.argmax()) for row in rows]
    together.pos += count
    assert_same(remembered(engine, single), remembered(engine, together))


def test_replays_launches_and_fused_launches_give_the_same_bytes() -> None:
    made = []
    for arms in ({"graphs": "off"}, {"graphs": "on"}, {"graphs": "on", "fused": "on"},
                 {"graphs": "on", "branches": "on"}):  # fmt: skip
        engine = flash("tensor", **arms)
        state = after_prompt(engine)
        rows = [engine.decode_step(int(t), state) for t in ids_of(6, seed=9)]
        made.append((np.stack(rows), remembered(engine, state)))
    for rows, caches in made[1:]:
        assert same_bytes(rows, made[0][0])
        assert_same(caches, made[0][1])


def test_a_committed_prefix_leaves_the_bytes_of_plain_steps() -> None:
    engine = flash("tensor", fused="on")
    plain, tried = after_prompt(engine), after_prompt(engine)
    vstate, ids, at = engine.alloc_verify_state(rows=4), ids_of(8, seed=5), 0
    rows = [engine.decode_step(int(t), plain) for t in ids]
    for kept in (2, 1, 3, 2):
        guess = np.concatenate([ids[at : at + kept], ids_of(4 - kept, seed=kept)])
        out = engine.verify_batch(guess, tried, vstate, want_logits=True)
        assert out.logits is not None
        assert same_bytes(out.logits[:kept], np.stack(rows[at : at + kept]))
        engine.commit_verify(tried, vstate, kept)
        at += kept
    assert_same(remembered(engine, plain), remembered(engine, tried))


@pytest.mark.parametrize("fused", ["off", "on"])
def test_ten_thousand_replays_are_the_same_bytes_on_both_cards(fused: str) -> None:
    engine = flash("tensor", fused=fused)
    state = after_prompt(engine, rows=2)
    graph = decode.record_step(engine, state, 2, "greedy")
    assert graph.graphs == 2 and len(graph.parts) == 2
    program = decode.program_of(engine, state, 2, 256)
    head = decode.head_of(engine, state, 2, "greedy")
    decode.write_control(engine, state, ids_of(2, seed=1))

    def ended() -> list[bytes]:
        ends = zip(engine.stages, program.ends, strict=True)
        return [s.device.to_numpy(end).tobytes() for s, end in ends]

    graph.replay()
    first, *others = ended()
    chosen = engine.last.device.to_numpy(head.result).tolist()
    assert all(other == first for other in others)
    for turn in range(REPLAYS):
        graph.replay()
        assert ended() == [first] * 2, turn
    assert engine.fetch(head.result)().tolist() == chosen


def test_a_rank_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(joins._SPINS, "cuda", 20_000)
    engine = Engine.load(
        plan_mint("small", "official", seed=3, layers=3), (0, 1), backend="cuda", max_seq=60,
        parallel="tensor",
    )  # fmt: skip
    state, ids = engine.alloc_decode_state(), ids_of(9) % 1024
    engine.prefill_with_cache(ids, state)
    want = engine.decode_step(5, state)
    step_tapes(engine, state, 1)[-1].run()
    with pytest.raises(DeviceError, match="did not come"):
        engine.decode_step(6, state)
    again = engine.alloc_decode_state()
    engine.prefill_with_cache(ids, again)
    assert same_bytes(engine.decode_step(5, again), want)
