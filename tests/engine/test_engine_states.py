"""Calls in a wrong order, with wrong ids or wrong states: an error of its kind, and no harm."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.engine import decode
from dsv4.engine.capture import Capture
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState, cache_bytes
from dsv4.errors import LaunchError, StateError
from tests.engine.engines import same_bytes, tiny_engine, tokens


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(quantisers="off")


def prefilled(engine: Engine, count: int = 9) -> DecodeState:
    state = engine.alloc_decode_state()
    engine.prefill_with_cache(tokens(count), state)
    return state


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "at least one"),
        ([[1, 2]], "list"),
        ([0.5], "whole numbers"),
        ([3, 256], "token 256, at place 1"),
        ([-1], "token -1, at place 0"),
        ([1] * 61, "60 positions"),
    ],
)
def test_ids_that_do_not_fit_are_refused_before_anything_runs(
    engine: Engine, ids: list, says: str
) -> None:
    state = engine.alloc_decode_state()
    for call in (lambda: engine.forward(ids), lambda: engine.prefill_with_cache(ids, state)):
        with pytest.raises(StateError, match=says):
            call()
    assert state.pos == 0 and not state.poisoned


def test_a_prompt_may_fill_the_capacity_and_no_step_goes_past_it(engine: Engine) -> None:
    state = prefilled(engine, 59)
    engine.decode_step(1, state)
    with pytest.raises(StateError, match="60 positions"):
        engine.decode_step(1, state)
    with pytest.raises(StateError, match="60 positions"):
        engine.prefill_with_cache([1], state)
    assert state.pos == 60 and not state.poisoned


def test_a_step_needs_a_prompt(engine: Engine) -> None:
    with pytest.raises(StateError, match="prefill_with_cache first"):
        engine.decode_step(1, engine.alloc_decode_state())


@pytest.mark.parametrize("token", [256, -1])
def test_a_step_takes_tokens_of_the_vocabulary(engine: Engine, token: int) -> None:
    state = prefilled(engine)
    for step in (engine.decode_step, engine.decode_step_greedy):
        with pytest.raises(StateError, match="vocabulary"):
            step(token, state)
    assert state.pos == 9 and not state.poisoned


def test_a_state_belongs_to_its_engine(engine: Engine) -> None:
    other, state = tiny_engine(quantisers="off", stages=2), prefilled(engine)
    for call in (
        lambda: other.decode_step(1, state),
        lambda: other.prefill_with_cache([1], state),
        lambda: other.cache_classes(state),
    ):
        with pytest.raises(StateError, match="another engine"):
            call()
    engine.decode_step(1, state)


def test_states_of_one_engine_do_not_touch_each_other(engine: Engine) -> None:
    ids, alone = tokens(20), prefilled(engine)
    want = [engine.decode_step(int(t), alone) for t in ids]
    first, second = prefilled(engine), engine.alloc_decode_state()
    engine.prefill_with_cache(tokens(5, seed=3), second)
    for token, row in zip(ids, want, strict=True):
        assert same_bytes(engine.decode_step(int(token), first), row)
        engine.decode_step(7, second)


def test_a_failure_inside_a_step_poisons_the_state(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = prefilled(engine)

    def fail(*_: object) -> None:
        raise LaunchError("the device was lost\n  more")

    with monkeypatch.context() as patch:
        patch.setattr(decode, "head_of", fail)
        with pytest.raises(LaunchError):
            engine.decode_step(1, state)
    for call in (
        lambda: engine.decode_step(1, state),
        lambda: engine.prefill_with_cache([1], state),
        lambda: engine.cache_classes(state),
    ):
        with pytest.raises(StateError, match="the device was lost"):
            call()
    assert state.pos == 9
    engine.decode_step(1, prefilled(engine))


def test_an_interrupt_poisons_the_state_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = prefilled(engine)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode, "head_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.decode_step(1, state)
    with pytest.raises(StateError, match="KeyboardInterrupt"):
        engine.decode_step(1, state)


@pytest.mark.parametrize("rows", [0, 9, -1])
def test_a_step_has_one_to_eight_rows(engine: Engine, rows: int) -> None:
    if rows == 0:
        assert engine.alloc_decode_state(rows=None).round_rows == 1
        return
    with pytest.raises(StateError, match="1 to 8 rows"):
        engine.alloc_decode_state(rows=rows)


def test_a_probe_is_for_the_legacy_path(engine: Engine) -> None:
    with pytest.raises(StateError, match="DSV4_DECODE_PATH=legacy"):
        engine.decode_step_probe(1, prefilled(engine))


def test_a_probed_step_is_the_step_with_every_intermediate() -> None:
    legacy = tiny_engine(quantisers="off", decode_path="legacy")
    probed, plain = prefilled(legacy), prefilled(legacy)
    logits, named = legacy.decode_step_probe(5, probed)
    assert same_bytes(logits, legacy.decode_step(5, plain))
    names = [name for name, _ in named]
    assert names[:7] == [
        f"layer0.{part}" for part in ("x", "q", "kv", "o", "attn_out", "moe_out", "h3")
    ]
    assert len(names) == 7 * 4
    shapes = {name: array.shape for name, array in named}
    assert shapes["layer3.q"] == (1, 4, 128) and shapes["layer3.h3"] == (1, 4, 128)


def test_a_pass_may_end_after_any_layer(engine: Engine) -> None:
    capture = Capture()
    assert engine.forward(tokens(9), capture, early_exit_after=1) is None
    assert set(capture.layer_out) == {0, 1}
    with pytest.raises(StateError, match=r"layers 0\.\.3"):
        engine.forward(tokens(9), early_exit_after=4)


def test_a_capture_keeps_the_layers_it_wants(engine: Engine) -> None:
    capture = Capture(want={1})
    out = engine.forward(tokens(21), capture)
    assert out is not None and out.h_last.shape == (21, 4, 128)
    assert capture.embed_out is not None and capture.embed_out.shape == (21, 4, 128)
    assert set(capture.layer_out) == set(capture.compressor_kv) == {1}
    assert capture.compressor_kv[1].shape == (5, 128)
    assert capture.indexer_kv[1].shape == (5, 128)
    assert capture.index_score[1].shape == (21, 5)
    visible = (np.arange(21)[:, None] + 1) // 4 > np.arange(5)
    assert np.array_equal(np.isfinite(capture.index_score[1]), visible)


def test_any_row_of_a_pass_has_its_logits(engine: Engine) -> None:
    out = engine.forward(tokens(9))
    assert out is not None
    assert same_bytes(engine.trunk_logits_row(out.h_last, 9, 8), out.logits)
    shorter = engine.forward(tokens(9)[:5])
    assert shorter is not None
    row = engine.trunk_logits_row(out.h_last, 9, 4)
    assert np.abs(row - shorter.logits).max() <= 1e-4 * np.abs(row).max()
    with pytest.raises(StateError, match="row 9 of 9"):
        engine.trunk_logits_row(out.h_last, 9, 9)


def test_there_is_no_next_token_block_without_one(engine: Engine) -> None:
    with pytest.raises(StateError, match="none is loaded"):
        engine.mtp_logits_last(None, [1])


def test_caches_take_the_bytes_that_the_placement_counted() -> None:
    engine = tiny_engine(quantisers="off", stages=2, split_at="2")
    state, chunk = engine.alloc_decode_state(), engine.arms.prefill_chunk
    keys = engine.arms.index_format
    for stage, size in zip(engine.placement.stages, state.cache_bytes, strict=True):
        ratios = engine.config.compress_ratios[slice(*stage.layers)]
        counted = [cache_bytes(engine.config, r, engine.max_seq, chunk, keys) for r in ratios]
        assert size == sum(counted) == stage.state_bytes


def test_live_classes_are_named_and_sized_by_what_was_seen(engine: Engine) -> None:
    state = prefilled(engine, 21)
    classes = dict(engine.cache_classes(state))
    layers = {name.split(".")[0] for name in classes}
    assert layers == {"l0", "l1", "l2", "l3"}
    kinds = {name.split(".", 1)[1] for name in classes if name.startswith("l1.")}
    assert kinds == {
        "ring", "cmp_store", "cmp_pend_kv", "cmp_pend_score",
        "idx_store", "idx_pend_kv", "idx_pend_score",
    }  # fmt: skip
    assert classes["l0.ring"].shape == (8, 128)
    assert classes["l1.cmp_store"].shape == classes["l1.idx_store"].shape == (5, 128)
    assert classes["l2.cmp_store"].shape == (2, 128)
    assert classes["l1.cmp_pend_kv"].shape == (8, 256)
    assert classes["l2.cmp_pend_score"].shape == (8, 128)
    # Token 20 opened block 5: one pending row, and the block before it.
    filled = np.isfinite(classes["l1.cmp_pend_score"]).all(axis=1)
    assert filled.tolist() == [True] * 5 + [False] * 3
