"""Speculative runs emit what plain decoding emits and leave what it leaves, whatever is drafted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dsv4.engine.drafting import Drafter, Drafts, DsparkDrafter, own_drafter
from dsv4.engine.engine import Engine
from dsv4.engine.speculate import SpecRun, open_loop, play_round, speculate
from dsv4.errors import Refusal, StateError
from dsv4.speculation.refusals import DrafterRefusal
from dsv4.speculation.sampling import SpecSampling
from lab.scripted import ScriptedDrafter, with_probability
from tests.engine.engines import tiny_engine, tokens
from tests.engine.speculation import assert_same_classes, plain_tokens, speaking_engine

PATTERNS = tuple(range(4))


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(drafter="dspark")


def scripted(engine: Engine, want: Sequence[int], start: int, right: int | float) -> Drafter:
    choose = with_probability(right, 3) if isinstance(right, float) else lambda n: int(right)
    return ScriptedDrafter(engine, 3, want, start, choose)


def assert_identity(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    *,
    right: int | float | None = None,
    depth: int | None = None,
    sampling: SpecSampling | None = None,
) -> SpecRun:
    """A run with its own drafter, or a scripted one, against plain decoding and its caches."""
    want, plain = plain_tokens(engine, prompt, count, sampling)
    drafter, vstate = None, None
    if right is not None:
        drafter = scripted(engine, want, len(prompt), right)
        vstate = engine.alloc_verify_state(4)
    state = engine.alloc_decode_state(rows=1)
    run = speculate(
        engine, prompt, count, drafter=drafter, state=state, vstate=vstate, depth_cap=depth,
        sampling=sampling,
    )  # fmt: skip
    assert tuple(run.tokens) == want
    assert state.pos == plain.pos == len(prompt) + count - 1
    assert_same_classes(engine.cache_classes(plain), engine.cache_classes(state))
    carried = count - sum(r.emitted for r in run.rounds)
    assert carried in (0, 1)
    for r in run.rounds:
        assert 0 <= r.accepted <= r.judged <= max(0, r.rows - 1) and r.emitted == 1 + r.accepted
        assert r.rows <= r.cap or r.rows == 0
        assert r.judged == min(r.accepted + 1, max(0, r.rows - 1))
    return run


@pytest.mark.parametrize("depth", [1, 2, 3, 4, None])
def test_the_stream_is_plain_at_every_depth(engine: Engine, depth: int | None) -> None:
    run = assert_identity(engine, tokens(9), 24, depth=depth)
    assert max(r.rows for r in run.rounds) <= (depth or 4)


@pytest.mark.parametrize("right", PATTERNS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_number_of_right_drafts_at_every_depth(
    engine: Engine, right: int, depth: int
) -> None:
    run = assert_identity(engine, tokens(9), 20, right=right, depth=depth)
    accepted = {r.accepted for r in run.rounds if r.rows == depth}
    assert accepted == {min(right, depth - 1)}


@pytest.mark.parametrize("length", [1, 7, 8, 9, 17])
def test_prompts_around_windows_and_blocks(engine: Engine, length: int) -> None:
    assert_identity(engine, tokens(length), 12, right=0.6)


@pytest.mark.parametrize("layout", ["0731", "nextn", "0731-nvfp4"])
@pytest.mark.parametrize("stages", [1, 2])
def test_real_drafts_of_made_models_are_accepted_and_change_nothing(
    layout: str, stages: int
) -> None:
    run = assert_identity(speaking_engine(layout, stages=stages), tokens(17), 40)
    assert run.tokens_per_round > 1.3
    assert len(run.accept_digest) == 16 and run.acceptance()[0][0] > 5


def test_recorded_rounds_and_drafts_replay_to_the_same_stream() -> None:
    engine = tiny_engine(drafter="dspark", graphs="on")
    loop = open_loop(engine, tokens(9), 24)
    while not loop.done:
        play_round(loop)
    assert tuple(loop.run.tokens) == plain_tokens(tiny_engine(), tokens(9), 24)[0]
    assert isinstance(loop.drafter, DsparkDrafter)
    assert loop.drafter.dstate.programs["draft"].replay.graph is not None
    assert loop.drafter.dstate.programs["rings", 0, 1].graph is not None


def test_a_depth_of_no_rows_is_one_row(engine: Engine) -> None:
    want, _ = plain_tokens(engine, tokens(9), 6)
    run = engine.spec_greedy_depth(tokens(9), 6, 0)
    assert tuple(run.tokens) == want and {r.rows for r in run.rounds[:-1]} == {1}
    assert tuple(engine.spec_greedy(tokens(9), 6).tokens) == want


def test_the_depth_of_the_environment_caps_rounds() -> None:
    engine = tiny_engine(drafter="dspark", spec_depth="2")
    assert {r.cap for r in engine.spec_greedy(tokens(9), 8).rounds[:-1]} == {2}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_small_budgets_emit_so_many_tokens(engine: Engine, count: int) -> None:
    run = speculate(engine, tokens(9), count)
    assert tuple(run.tokens) == plain_tokens(engine, tokens(9), max(1, count))[0][:count]
    if count == 0:
        assert not run.rounds
    if count == 1:
        (only,) = run.rounds
        assert (only.rows, only.judged, only.accepted, only.emitted) == (0, 0, 0, 1)
        assert len(only.drafts) == 3
    with pytest.raises(StateError, match="0 or more"):
        speculate(engine, tokens(9), -1)


def test_a_round_that_spends_the_budget_carries_its_last_token(engine: Engine) -> None:
    run = assert_identity(engine, tokens(9), 7, right=3)
    # Four tokens; then a round of three rows that accepts all of them, and one token behind it.
    assert [(r.rows, r.emitted) for r in run.rounds] == [(4, 4), (2, 2)]
    assert sum(r.emitted for r in run.rounds) == 6


def test_a_sequence_may_fill_the_capacity_and_no_run_goes_past_it(engine: Engine) -> None:
    assert_identity(engine, tokens(50), 11, right=2)
    with pytest.raises(StateError, match="60 positions"):
        speculate(engine, tokens(50), 12)


@pytest.mark.parametrize("place", range(8))
def test_a_stop_token_inside_an_accepted_run_ends_it_as_plain_decoding_does(place: int) -> None:
    engine = speaking_engine("0731", 1.0)
    want, _ = plain_tokens(engine, tokens(17), 12)
    assert len(set(want[: place + 1])) == place + 1
    state = engine.alloc_decode_state(rows=1)
    run = speculate(engine, tokens(17), 12, state=state, stop={want[place]})
    assert run.stopped and tuple(run.tokens) == want[: place + 1]
    _, plain = plain_tokens(engine, tokens(17), place + 1)
    assert state.pos == plain.pos == 17 + place
    assert_same_classes(engine.cache_classes(plain), engine.cache_classes(state))
    engine.decode_step(int(want[place]), state)


def test_a_callback_sees_every_round_and_may_end_the_run(engine: Engine) -> None:
    want, _ = plain_tokens(engine, tokens(9), 20)
    seen: list[list[int]] = []

    def take(added: Sequence[int]) -> bool:
        seen.append(list(added))
        return len(seen) == 3

    drafter = scripted(engine, want, 9, 2)
    run = speculate(engine, tokens(9), 20, drafter=drafter, on_commit=take)
    assert [len(s) for s in seen] == [3, 3, 3]
    assert tuple(itertools.chain(*seen)) == want[:9] == tuple(run.tokens)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "sampling",
    [
        SpecSampling(1.0),
        SpecSampling(0.7, top_k=12),
        SpecSampling(1.3, top_p=0.8, min_p=0.02),
    ],
    ids=str,
)
def test_a_drawn_stream_is_the_plain_drawn_stream(seed: int, sampling: SpecSampling) -> None:
    engine = speaking_engine("0731", 1.0)
    assert_identity(engine, tokens(17), 14, sampling=replace(sampling, seed=seed))


@pytest.mark.parametrize("layout", ["0731", "nextn"])
def test_another_seed_draws_another_stream_and_drafts_are_accepted(layout: str) -> None:
    engine, hot = speaking_engine(layout, 1.0), 1.5
    runs = [
        assert_identity(engine, tokens(17), 20, sampling=SpecSampling(hot, seed=seed))
        for seed in (1, 2)
    ]
    assert runs[0].tokens != runs[1].tokens
    warm = assert_identity(engine, tokens(17), 20, sampling=SpecSampling(0.8, seed=1))
    assert sum(r.accepted for r in warm.rounds) > 3


def test_the_window_follows_the_confidence() -> None:
    engine = tiny_engine(drafter="dspark", vt="slot")
    floored = tiny_engine(drafter="dspark", vt="slot", vt_floor="1")
    for right, rows, least in ((0, 1, 2), (2, 3, 3), (3, 4, 4)):
        run = assert_identity(engine, tokens(9), 20, right=right)
        assert {r.rows for r in run.rounds[:-2]} == {rows}
        run = assert_identity(floored, tokens(9), 20, right=right)
        assert {r.rows for r in run.rounds[:-2]} == {least}


def test_a_confidence_that_is_no_number_believes_in_nothing() -> None:
    engine = tiny_engine(drafter="dspark", vt="slot")
    want, _ = plain_tokens(engine, tokens(9), 8)
    drafter = scripted(engine, want, 9, 3)

    class Unsure:
        block, taps = 3, None
        prime, accept = drafter.prime, drafter.accept

        def propose(self, token: int, pos: int) -> Drafts:
            made = drafter.propose(token, pos)
            return Drafts(made.tokens, np.array([3.0, np.nan, 3.0], np.float32))

    run = speculate(engine, tokens(9), 8, drafter=Unsure())
    assert tuple(run.tokens) == want and {r.rows for r in run.rounds[:-1]} == {2}


def test_a_window_needs_a_confidence() -> None:
    engine = tiny_engine(folder="tiny-nextn", vt="slot", max_seq=60)
    with pytest.raises(Refusal, match="DSV4_VT"):
        speculate(engine, tokens(9), 4)


def test_what_cannot_be_is_refused_before_anything_runs(engine: Engine) -> None:
    state = engine.alloc_decode_state(rows=1)
    with pytest.raises(DrafterRefusal, match="temperature"):
        speculate(engine, tokens(9), 4, state=state, sampling=SpecSampling(0.0))
    with pytest.raises(StateError, match="at least one"):
        speculate(engine, [], 4, state=state)
    with pytest.raises(StateError, match="DSV4_DRAFTER"):
        speculate(tiny_engine(), tokens(9), 4)
    assert state.pos == 0 and not state.poisoned
    engine.prefill_with_cache(tokens(9), state)
    with pytest.raises(StateError, match="has seen 9 tokens"):
        speculate(engine, tokens(9), 4, state=state)


@pytest.mark.parametrize("layout", ["0731", "nextn"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_run_goes_on_behind_a_round_that_failed(
    layout: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = speaking_engine(layout, 1.0)
    want, plain = plain_tokens(engine, tokens(17), 16)
    loop = open_loop(engine, tokens(17), 16)
    for _ in range(at):
        play_round(loop)
    before, pos = list(loop.run.tokens), loop.state.pos

    def fail(*_: object) -> None:
        raise StateError("lost")

    with monkeypatch.context() as patch:
        patch.setattr("dsv4.engine.verify._run", fail)
        with pytest.raises(StateError, match="lost"):
            play_round(loop)
    assert loop.run.tokens == before and loop.state.pos == pos
    with pytest.raises(StateError, match="allocate a new one"):
        play_round(loop)
    loop.vstate = engine.alloc_verify_state()
    while not loop.done:
        play_round(loop)
    assert tuple(loop.run.tokens) == want
    assert_same_classes(engine.cache_classes(plain), engine.cache_classes(loop.state))


def test_tokens_stay_committed_when_the_drafter_fails_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = speaking_engine("0731", 1.0)
    want, _ = plain_tokens(engine, tokens(17), 12)
    loop = open_loop(engine, tokens(17), 12)

    def fail(*_: object) -> None:
        raise StateError("lost")

    loop.drafter.dstate.programs.clear()
    with monkeypatch.context() as patch:
        patch.setattr("dsv4.engine.dspark._bind_rings", fail)
        with pytest.raises(StateError, match="lost"):
            play_round(loop)
    emitted = len(loop.run.tokens)
    assert emitted == 4 and loop.state.pos == 17 + emitted
    with pytest.raises(StateError, match="half-written"):
        play_round(loop)
    token, rest = loop.token, []
    while emitted + len(rest) < 12:
        rest.append(token)
        token = engine.decode_step_greedy(token, loop.state)
    assert (*loop.run.tokens, *rest) == want


def test_rings_after_a_run_are_those_of_a_run_of_single_steps() -> None:
    engine = speaking_engine("0731", 0.8)
    loop = open_loop(engine, tokens(17), 40)
    while not loop.done:
        play_round(loop)
    drafter, alone = loop.drafter, own_drafter(engine)
    state = engine.alloc_decode_state(rows=1)
    alone.prime([int(t) for t in tokens(17)], state)
    for token in loop.run.tokens[: loop.state.pos - 17]:
        engine.decode_step_tap(token, state, alone.taps, 0)
        alone.accept([token], state.pos - 1)
    assert_same_classes(
        engine.dspark_ring_classes(drafter.dstate), engine.dspark_ring_classes(alone.dstate)
    )


@pytest.mark.stress
@pytest.mark.parametrize("layout", ["0731", "nextn", "nvfp4"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 255])
def test_long_runs_of_every_length_of_prompt(layout: str, length: int) -> None:
    plan_engine = speaking_engine(layout, 0.7, 3, 1, 250)
    if length > 240:
        pytest.skip("the made model has 250 positions here")
    count = min(100, 250 - length)
    assert_identity(plan_engine, tokens(length), count)
    assert_identity(plan_engine, tokens(length), count, right=0.5)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_of_drawn_streams(seed: int) -> None:
    engine = speaking_engine("0731", 1.0, max_seq=120)
    assert_identity(engine, tokens(17), 60, sampling=SpecSampling(0.9, seed=seed, top_p=0.95))
