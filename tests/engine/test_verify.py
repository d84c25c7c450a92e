"""Rounds: what they say is what single steps say, what they keep is what single steps leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dsv4.engine import verify
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState, begin_again
from dsv4.engine.verify import VerifyState
from dsv4.errors import LaunchError, StateError
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.engine.speculation import assert_same_classes, speaking_engine

CELLS = [(rows, keep) for rows in range(1, 5) for keep in range(1, rows + 1)]


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(drafter="dspark")


def opened(engine: Engine, count: int = 9) -> tuple[DecodeState, VerifyState]:
    state = engine.alloc_decode_state(rows=1)
    engine.prefill_with_cache(tokens(count), state)
    return state, engine.alloc_verify_state()


def rounds_against_steps(engine: Engine, warm_ups: range, cells: list, most: int) -> None:
    """Every cell behind every warm-up, one after the other in a sequence of right and wrong ids."""
    taps = [engine.dspark_alloc_state().taps for _ in range(2)] if engine.dspark else [None, None]
    plain, tried = engine.alloc_decode_state(rows=1), engine.alloc_decode_state(rows=1)
    vstate, ids = engine.alloc_verify_state(most), tokens(engine.max_seq)
    wrong = (ids + 1) % engine.config.vocab_size
    for warm_up in warm_ups:
        for state in (plain, tried):
            begin_again(state)
            engine.prefill_with_cache(ids[:warm_up], state)
        for rows, keep in cells:
            start = plain.pos
            right = np.arange(rows) < keep
            guess = np.where(right, ids[start : start + rows], wrong[start : start + rows])
            out = engine.verify_batch(guess, tried, vstate, taps[1], want_logits=True)
            assert tried.pos == start
            engine.commit_verify(tried, vstate, keep)
            assert tried.pos == start + keep
            assert out.logits is not None
            for i in range(keep):
                if taps[0] is None:
                    row = engine.decode_step(int(guess[i]), plain)
                else:
                    row = engine.decode_step_tap(int(guess[i]), plain, taps[0], i)
                assert same_bytes(row, out.logits[i]), (warm_up, rows, keep, i)
                assert out.argmax[i] == row.argmax()
            if taps[0] is not None:
                assert same_bytes(taps[0].rows[:keep], taps[1].rows[:keep])
            assert_same_classes(engine.cache_classes(plain), engine.cache_classes(tried))


def test_every_round_is_single_steps_behind_every_warm_up(engine: Engine) -> None:
    rounds_against_steps(engine, range(1, 9), CELLS, 4)


def test_rounds_of_the_most_rows_are_single_steps(engine: Engine) -> None:
    cells = [(rows, keep) for rows in (5, 6, 7, 8) for keep in (1, rows - 1, rows)]
    rounds_against_steps(tiny_engine(), range(5, 7), cells, 8)


@pytest.mark.parametrize("stages", [1, 2])
def test_rounds_of_a_made_model_are_single_steps(stages: int) -> None:
    rounds_against_steps(speaking_engine("0731", stages=stages), range(15, 17), CELLS[::-1], 4)


@pytest.mark.stress
@pytest.mark.parametrize("layout", ["0731", "nextn", "nvfp4", "official"])
def test_every_round_of_every_layout_is_single_steps(layout: str) -> None:
    engine = speaking_engine(layout, max_seq=200)
    # A drafter's taps hold the rows of its own rounds; without one a round may have eight.
    most = engine.verify_tmax if engine.dspark else 8
    cells = [(rows, keep) for rows in range(1, most + 1) for keep in range(1, rows + 1)]
    rounds_against_steps(engine, range(1, 34), cells, most)


@pytest.mark.parametrize("path", ["device-hostmath"])
def test_rounds_with_host_mathematics_are_single_steps(path: str) -> None:
    engine = tiny_engine(drafter="dspark", decode_path=path)
    rounds_against_steps(engine, range(7, 8), CELLS, 4)


@pytest.mark.parametrize(
    "switches",
    [{"quantisers": "off"}, {"dots_arm": "f64"}, {"graphs": "on"}, {"fused": "on"}],
    ids=str,
)
def test_rounds_under_other_arms_are_single_steps(switches: dict[str, str]) -> None:
    engine = tiny_engine(drafter="dspark", **switches)
    rounds_against_steps(engine, range(6, 7), CELLS, 4)


def test_a_round_without_logits_chooses_the_same_tokens(engine: Engine) -> None:
    state, vstate = opened(engine)
    first = engine.verify_batch([3, 4, 5], state, vstate)
    engine.commit_verify(state, vstate, 1)
    other, _ = opened(engine)
    second = engine.verify_batch([3, 4, 5], other, vstate, want_logits=True)
    assert first.logits is None and np.array_equal(first.argmax, second.argmax)


def test_tokens_that_do_not_fit_are_refused_before_anything_runs(engine: Engine) -> None:
    state, vstate = opened(engine)
    for toks, says in (
        ([], "at least one"),
        ([1] * 5, "room for 4"),
        ([1, 256], "token 256, at place 1"),
        ([[1]], "list"),
    ):
        with pytest.raises(StateError, match=says):
            engine.verify_batch(toks, state, vstate)
    assert vstate.open is None and not vstate.poisoned and state.pos == 9
    engine.verify_batch([1], state, vstate)


def test_a_round_does_not_go_past_the_capacity(engine: Engine) -> None:
    state, vstate = opened(engine, 58)
    with pytest.raises(StateError, match="60 positions"):
        engine.verify_batch([1, 2, 3], state, vstate)
    engine.verify_batch([1, 2], state, vstate)
    engine.commit_verify(state, vstate, 2)
    assert state.pos == 60


def test_a_round_needs_a_prompt(engine: Engine) -> None:
    with pytest.raises(StateError, match="prefill_with_cache first"):
        engine.verify_batch([1], engine.alloc_decode_state(), engine.alloc_verify_state())


def test_nothing_else_happens_to_a_state_while_a_round_is_open(engine: Engine) -> None:
    state, vstate = opened(engine)
    engine.verify_batch([1, 2], state, vstate)
    second = engine.alloc_verify_state()
    calls: tuple[Callable[[], object], ...] = (
        lambda: engine.decode_step(1, state),
        lambda: engine.decode_step_greedy(1, state),
        lambda: engine.prefill_with_cache([1], state),
        lambda: engine.cache_classes(state),
        lambda: engine.verify_batch([1], state, vstate),
        lambda: engine.verify_batch([1], state, second),
        lambda: begin_again(state),
    )
    for call in calls:
        with pytest.raises(StateError, match="commit_verify first"):
            call()
    engine.commit_verify(state, vstate, 1)
    engine.decode_step(1, state)


def test_a_verify_state_has_one_open_round(engine: Engine) -> None:
    state, vstate = opened(engine)
    other, _ = opened(engine)
    engine.verify_batch([1, 2], state, vstate)
    with pytest.raises(StateError, match="still open here"):
        engine.verify_batch([1], other, vstate)
    with pytest.raises(StateError, match="no round of this state"):
        engine.commit_verify(other, vstate, 1)
    engine.commit_verify(state, vstate, 2)
    engine.verify_batch([1], other, vstate)


@pytest.mark.parametrize("count", [0, -1, 3])
def test_a_commit_that_cannot_be_leaves_the_round_open(engine: Engine, count: int) -> None:
    state, vstate = opened(engine)
    with pytest.raises(StateError, match="no round of this state"):
        engine.commit_verify(state, vstate, 1)
    engine.verify_batch([1, 2], state, vstate)
    with pytest.raises(StateError, match=r"rows 1\.\.2"):
        engine.commit_verify(state, vstate, count)
    assert state.pos == 9 and vstate.open is not None
    engine.commit_verify(state, vstate, 2)
    with pytest.raises(StateError, match="no round of this state"):
        engine.commit_verify(state, vstate, 1)
    assert state.pos == 11


def test_taps_must_have_the_rows_and_the_engine(engine: Engine) -> None:
    state, vstate = opened(engine)
    taps, other = engine.dspark_alloc_state().taps, speaking_engine("0731").dspark_alloc_state()
    wide = engine.alloc_verify_state(8)
    with pytest.raises(StateError, match="taps have 4 rows"):
        engine.verify_batch([1] * 5, state, wide, taps)
    with pytest.raises(StateError, match="another engine's taps"):
        engine.verify_batch([1], state, vstate, other.taps)
    with pytest.raises(StateError, match="taps have 4 rows"):
        engine.decode_step_tap(1, state, taps, 4)
    assert state.pos == 9 and not state.poisoned and not vstate.poisoned


def test_rounds_need_a_drafter_or_a_number_of_rows() -> None:
    engine = tiny_engine()
    assert engine.verify_tmax == 0 and tiny_engine(drafter="dspark").verify_tmax == 4
    assert speaking_engine("nextn").verify_tmax == 2
    with pytest.raises(StateError, match="DSV4_DRAFTER=dspark"):
        engine.alloc_verify_state()
    with pytest.raises(StateError, match="1 to 8 rows"):
        engine.alloc_verify_state(9)
    assert engine.alloc_verify_state(3).tmax == 3


def test_rounds_and_tapped_steps_are_for_the_device_path() -> None:
    engine = tiny_engine(decode_path="legacy", drafter="dspark")
    state, dstate = engine.alloc_decode_state(rows=1), engine.dspark_alloc_state()
    engine.prefill_with_cache(tokens(9), state)
    with pytest.raises(StateError, match="DSV4_DECODE_PATH=device"):
        engine.alloc_verify_state()
    with pytest.raises(StateError, match="DSV4_DECODE_PATH=device"):
        engine.decode_step_tap(1, state, dstate.taps, 0)


def test_a_verify_state_belongs_to_its_engine(engine: Engine) -> None:
    state, _ = opened(engine)
    foreign = tiny_engine().alloc_verify_state(4)
    for call in (
        lambda: engine.verify_batch([1], state, foreign),
        lambda: engine.commit_verify(state, foreign, 1),
    ):
        with pytest.raises(StateError, match="another engine's verify state"):
            call()


@pytest.mark.parametrize("error", [LaunchError("the device was lost"), KeyboardInterrupt()])
def test_a_round_that_fails_loses_nothing_that_was_committed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    state, vstate = opened(engine)
    plain, _ = opened(engine)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(verify, "_run", fail)
        with pytest.raises(type(error)):
            engine.verify_batch([5, 6, 7], state, vstate)
    assert state.pos == 9 and not state.poisoned and vstate.open is None
    for call in (
        lambda: engine.verify_batch([1], state, vstate),
        lambda: engine.commit_verify(state, vstate, 1),
    ):
        with pytest.raises(StateError, match=type(error).__name__):
            call()
    fresh = engine.alloc_verify_state()
    for start in (9, 11, 13):
        toks = tokens(20)[start : start + 2]
        engine.verify_batch(toks, state, fresh)
        engine.commit_verify(state, fresh, 2)
        for token in toks:
            engine.decode_step(int(token), plain)
    assert_same_classes(engine.cache_classes(plain), engine.cache_classes(state))
