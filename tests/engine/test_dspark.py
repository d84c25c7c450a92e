"""The drafter: recorded drafts, rings that only committed positions write, and misuse."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.engine.capture import Capture
from dsv4.engine.draft import DsparkCapture
from dsv4.engine.dspark import DsparkState, prefill_tapped
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.errors import LaunchError, StateError
from lab.model_diff import model_diff
from oracle.laws import LAWS
from oracle.nextn import nextn_forward
from oracle.trunk import build_model, forward
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.engine.speculation import assert_same_classes, speaking_engine
from tests.goldens import golden, golden_folder


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(drafter="dspark")


def primed(engine: Engine, count: int = 9) -> tuple[DecodeState, DsparkState]:
    state, dstate = engine.alloc_decode_state(rows=1), engine.dspark_alloc_state()
    engine.dspark_prefill_prime(tokens(count), state, dstate)
    return state, dstate


@pytest.mark.parametrize("name", ["tiny-s", "tiny-a"])
def test_recorded_drafts_are_met(name: str) -> None:
    report = model_diff(golden_folder(name), subject="engine", backend="host")
    drafts = {c.name: c for c in report.checks if ".spec." in c.name}
    assert set(drafts) == {"smooth.spec.logits", "smooth.spec.confidence"}
    assert all(c.passed and c.rel_max <= 2e-6 for c in drafts.values())
    assert report.tokens.agree == report.tokens.compared


def test_drafts_of_recorded_positions_are_the_recorded_ids() -> None:
    recorded, engine = golden("tiny-s"), tiny_engine(drafter="dspark", quantisers="off")
    state, dstate = engine.alloc_decode_state(rows=1), engine.dspark_alloc_state()
    engine.dspark_prefill_prime(recorded.ids[: recorded.prompt], state, dstate)
    for step, token in enumerate(recorded.ids[recorded.prompt :]):
        chosen = engine.decode_step_greedy_tap(int(token), state, dstate.taps, step % 4)
        engine.dspark_write_rings(dstate, step % 4, state.pos - 1)
        made = engine.dspark_forward_spec(dstate, chosen, step % 4, state.pos - 1)
        assert np.array_equal(made.out_ids, recorded.arrays["smooth.spec.out_ids"][step])


def test_a_capture_holds_what_the_draft_was_made_of(engine: Engine) -> None:
    _, dstate = primed(engine)
    plain = engine.dspark_forward_spec(dstate, 5, 0, 8)
    capture = DsparkCapture()
    made = engine.dspark_forward_spec(dstate, 5, 0, 8, capture)
    assert made.capture is capture and plain.capture is None and plain.margins is None
    assert np.array_equal(made.out_ids, plain.out_ids) and made.out_ids[0] == 5
    assert same_bytes(made.confidence, plain.confidence)
    assert [b.shape for b in capture.block_outs] == [(3, 4, 128)] * 2
    assert capture.x_collapsed is not None and capture.x_collapsed.shape == (3, 128)
    assert capture.main_x is not None and capture.main_x.shape == (128,)
    assert same_bytes(capture.main_hidden, engine.last.device.to_numpy(dstate.taps.rows)[0])
    assert capture.logits_pre is not None and capture.logits_post is not None
    assert capture.markov_embed is not None and capture.markov_embed.shape == (3, 16)
    assert np.array_equal(capture.logits_post.argmax(axis=1), made.out_ids[1:])
    assert made.top1_logits is not None and made.margins is not None
    assert same_bytes(made.top1_logits, capture.logits_post.max(axis=1))
    assert (made.margins >= 0).all()
    bias = capture.logits_post - capture.logits_pre
    w2 = engine.last.device.to_numpy(engine.dspark.markov_w2) if engine.dspark else None
    assert w2 is not None
    wide = (w2.astype(np.uint32) << 16).view(np.float32)
    assert np.allclose(bias, capture.markov_embed @ wide.T, atol=1e-4)


def test_a_draft_changes_no_ring_and_repeats_to_the_byte(engine: Engine) -> None:
    state, dstate = primed(engine)
    before, caches = engine.dspark_ring_classes(dstate), engine.cache_classes(state)
    first = engine.dspark_forward_spec(dstate, 5, 0, 8)
    engine.dspark_forward_spec(dstate, 77, 0, 8)
    again = engine.dspark_forward_spec(dstate, 5, 0, 8)
    assert np.array_equal(first.out_ids, again.out_ids)
    assert same_bytes(first.confidence, again.confidence)
    assert_same_classes(before, engine.dspark_ring_classes(dstate))
    assert_same_classes(caches, engine.cache_classes(state))


def test_the_chain_through_the_host_gives_the_bytes_of_the_device(engine: Engine) -> None:
    host = tiny_engine(drafter="dspark", dspark_chain="host")
    for token in (0, 5, 200):
        a = engine.dspark_forward_spec(primed(engine)[1], token, 0, 8)
        b = host.dspark_forward_spec(primed(host)[1], token, 0, 8)
        assert np.array_equal(a.out_ids, b.out_ids) and same_bytes(a.confidence, b.confidence)


def test_the_head_in_double_agrees_with_single(engine: Engine) -> None:
    double = tiny_engine(drafter="dspark", dspark_head_arm="f64")
    one, two = DsparkCapture(), DsparkCapture()
    engine.dspark_forward_spec(primed(engine)[1], 5, 0, 8, one)
    double.dspark_forward_spec(primed(double)[1], 5, 0, 8, two)
    assert one.logits_pre is not None and two.logits_pre is not None
    assert not same_bytes(one.logits_pre, two.logits_pre)
    assert np.allclose(one.logits_pre, two.logits_pre, atol=1e-5)


def test_two_stages_draft_the_bytes_of_one() -> None:
    made = []
    for stages in (1, 2):
        engine = speaking_engine("0731", stages=stages)
        state, dstate = primed(engine, 20)
        proposal = engine.dspark_forward_spec(dstate, 5, 0, 19)
        made.append((proposal, engine.dspark_ring_classes(dstate)))
    assert np.array_equal(made[0][0].out_ids, made[1][0].out_ids)
    assert same_bytes(made[0][0].confidence, made[1][0].confidence)
    assert_same_classes(made[0][1], made[1][1])


@pytest.mark.parametrize("count", [1, 7, 8, 9, 21])
def test_a_primed_ring_is_one_written_position_by_position(engine: Engine, count: int) -> None:
    _, dstate = primed(engine, count)
    capture = Capture()
    engine.forward(tokens(count), capture)
    means = [capture.layer_out[n].mean(axis=1) for n in (2, 3)]
    hidden = np.concatenate(means, axis=1).astype(np.float32)
    other, device = engine.dspark_alloc_state(), engine.last.device
    other.next = max(0, count - 8)
    for pos in range(other.next, count):
        other.taps.rows[2:3] = device.to_device(hidden[pos : pos + 1])
        engine.dspark_write_rings(other, 2, pos)
    assert_same_classes(engine.dspark_ring_classes(dstate), engine.dspark_ring_classes(other))
    assert same_bytes(device.to_numpy(dstate.taps.rows)[0], hidden[-1])


def test_a_prime_from_taps_is_the_prime_of_the_prompt(engine: Engine) -> None:
    _, dstate = primed(engine, 13)
    other = engine.dspark_alloc_state()
    _, held = prefill_tapped(engine, tokens(13), engine.alloc_decode_state(rows=1), other.taps)
    assert held.shape == (8, 256)
    for wrong, says in ((held[:7], "last 8 rows"), (held[:, :100], r"\[8, 100\]")):
        with pytest.raises(StateError, match=says):
            engine.dspark_prime_prefill(other, wrong, 13)
    engine.dspark_prime_prefill(other, held, 13)
    assert_same_classes(engine.dspark_ring_classes(dstate), engine.dspark_ring_classes(other))
    with pytest.raises(StateError, match="prime a new state"):
        engine.dspark_prime_prefill(other, held, 13)


def test_positions_are_written_once_and_in_order(engine: Engine) -> None:
    _, dstate = primed(engine)
    for pos, rows in ((10, 1), (7, 1), (8, 2), (9, 0)):
        with pytest.raises(StateError, match="position 9 comes next|tap rows"):
            engine.dspark_write_rings(dstate, 0, pos, rows)
    with pytest.raises(StateError, match="taps have 4 rows"):
        engine.dspark_write_rings(dstate, 2, 9, 3)
    engine.dspark_write_rings(dstate, 0, 8)
    engine.dspark_write_rings(dstate, 0, 9, 4)
    assert dstate.next == 13
    dstate.next = 58
    with pytest.raises(StateError, match="60 positions"):
        engine.dspark_write_rings(dstate, 0, 58, 3)


def test_a_draft_stands_behind_the_last_written_position(engine: Engine) -> None:
    _, dstate = primed(engine)
    for pos in (-1, 7, 9):
        with pytest.raises(StateError, match="rings end at position 8"):
            engine.dspark_forward_spec(dstate, 5, 0, pos)
    with pytest.raises(StateError, match="token 256"):
        engine.dspark_forward_spec(dstate, 256, 0, 8)
    with pytest.raises(StateError, match="rings end at position -1"):
        engine.dspark_forward_spec(engine.dspark_alloc_state(), 5, 0, 0)


def test_a_drafter_that_is_not_loaded_is_missed_at_once() -> None:
    engine = tiny_engine()
    with pytest.raises(StateError, match="DSV4_DRAFTER=dspark"):
        engine.dspark_alloc_state()
    with pytest.raises(StateError, match=r"mtp\.0\.e_proj"):
        engine.mtp_alloc_state()
    with pytest.raises(StateError, match="another engine's drafter state"):
        tiny_engine(drafter="dspark").dspark_forward_spec(
            speaking_engine("0731").dspark_alloc_state(), 1, 0, 0
        )


def test_a_failure_while_rings_are_written_poisons_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, dstate = primed(engine)

    def fail(*_: object) -> None:
        raise LaunchError("the device was lost")

    with monkeypatch.context() as patch:
        patch.setattr("dsv4.engine.dspark._bind_rings", fail)
        with pytest.raises(LaunchError):
            engine.dspark_write_rings(dstate, 3, 9)
    for call in (
        lambda: engine.dspark_write_rings(dstate, 0, 9),
        lambda: engine.dspark_forward_spec(dstate, 1, 0, 8),
        lambda: engine.dspark_ring_classes(dstate),
    ):
        with pytest.raises(StateError, match="the device was lost"):
            call()


def test_a_tapped_prefill_is_of_a_whole_prompt(engine: Engine) -> None:
    state, dstate = primed(engine)
    with pytest.raises(StateError, match="has seen 9 tokens"):
        engine.dspark_prefill_prime([1], state, engine.dspark_alloc_state())
    assert dstate.next == 9 and not state.poisoned


def test_next_token_drafts_are_those_of_the_float64_model() -> None:
    recorded = golden("tiny-nextn")
    engine = tiny_engine(folder="tiny-nextn", quantisers="off")
    ids, prompt = [int(t) for t in recorded.ids], 20
    model = build_model(recorded.config, recorded.tensors, LAWS["smooth"])
    want = nextn_forward(model, forward(model, ids).state[:-1], ids[1:]).argmax(axis=1)
    state, mstate = engine.alloc_decode_state(rows=1), engine.mtp_alloc_state()
    engine.mtp_prefill_prime(ids[:prompt], state, mstate)
    drafted = [engine.mtp_propose(mstate, ids[prompt], prompt - 1)]
    assert engine.mtp_propose(mstate, ids[prompt], prompt - 1) == drafted[0]
    vstate = engine.alloc_verify_state()
    for pos in range(prompt, len(ids) - 2, 2):
        engine.verify_batch(ids[pos : pos + 2], state, vstate, mstate.taps)
        engine.commit_verify(state, vstate, 2)
        engine.mtp_accept(mstate, ids[pos : pos + 2], pos)
        drafted.append(engine.mtp_propose(mstate, ids[pos + 2], pos + 1))
    assert drafted == want[prompt - 1 :: 2][: len(drafted)].tolist() and len(drafted) == 11


def test_the_next_token_block_sees_every_position_once() -> None:
    engine = tiny_engine(folder="tiny-nextn", quantisers="off")
    state, mstate = engine.alloc_decode_state(rows=1), engine.mtp_alloc_state()
    engine.mtp_prefill_prime(tokens(9), state, mstate)
    with pytest.raises(StateError, match="newest accepted position is 8"):
        engine.mtp_propose(mstate, 5, 9)
    with pytest.raises(StateError, match="position 8 comes next"):
        engine.mtp_accept(mstate, [5], 9)
    engine.mtp_propose(mstate, 5, 8)
    with pytest.raises(StateError, match="taps have 8 rows"):
        engine.mtp_accept(mstate, [1] * 9, 9)
    engine.mtp_accept(mstate, [5, 6], 9)
    with pytest.raises(StateError, match="1 tokens wait"):
        engine.mtp_accept(mstate, [7], 11)
    with pytest.raises(StateError, match="prime a new state"):
        engine.mtp_prefill_prime(tokens(9), engine.alloc_decode_state(), mstate)
