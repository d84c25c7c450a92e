"""Rounds of draft and verify until a budget is spent; they emit what plain decoding emits."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dsv4.engine.drafting import Drafter, NextnDrafter, SharedDrafter, own_drafter
from dsv4.engine.state import DecodeState
from dsv4.engine.verify import (
    VerifyOut,
    VerifyState,
    alloc_verify_state,
    begin_verify,
    commit_verify,
)
from dsv4.errors import Refusal, StateError
from dsv4.speculation.accept import accept_prefix
from dsv4.speculation.draws import draw_at
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.window import slot_window

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class SpecRound:
    """One round. start: the last position committed before it.

    accepted: drafts that stayed. judged: drafts that were compared, up to the first wrong one.
    rows: of the verify; 0 when the budget ended before it. cap: rows it could have had. emitted:
    the token before the drafts and what was accepted.
    """

    start: int
    drafts: tuple[int, ...]
    accepted: int
    judged: int
    rows: int
    cap: int
    confidence: tuple[float, ...]
    emitted: int
    time_s: float


@dataclass(slots=True)
class SpecRun:
    """What came after the prompt, and the rounds that made it. stopped: by a stop token."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[SpecRound] = field(default_factory=list)
    stopped: bool = False
    prime_s: float = 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean over the rounds; 0 without any."""
        total = sum(r.emitted for r in self.rounds)
        return total / len(self.rounds) if self.rounds else 0.0

    @property
    def accept_digest(self) -> str:
        """A digest of how many drafts each round accepted: the same run has the same one."""
        return hashlib.sha256(bytes(r.accepted for r in self.rounds)).hexdigest()[:16]

    def acceptance(self) -> list[tuple[int, int]]:
        """By place of a draft: (how often it was accepted, how often it was judged)."""
        places = max((r.judged for r in self.rounds), default=0)
        return [
            (sum(r.accepted > i for r in self.rounds), sum(r.judged > i for r in self.rounds))
            for i in range(places)
        ]


OnCommit = Callable[[Sequence[int]], bool]
"""Called with the tokens that a round added; True ends the run there."""


def go_on(tokens: Sequence[int]) -> bool:
    """The callback that never ends a run."""
    return False


@dataclass(slots=True)
class SpecLoop:
    """A run between rounds. token: decided, and neither emitted nor consumed yet.

    carry: the last round used the whole budget, so `token` is the last one. A round that fails
    leaves everything as it was before it, but for its verify state.
    """

    engine: Engine
    drafter: Drafter
    state: DecodeState
    vstate: VerifyState
    budget: int
    cap: int
    token: int
    sampling: SpecSampling | None
    stop: Collection[int]
    run: SpecRun = field(default_factory=SpecRun)
    carry: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to emit."""
        return self.run.stopped or len(self.run.tokens) >= self.budget


def speculate(
    engine: Engine,
    prompt: Sequence[int] | np.ndarray,
    n_new: int,
    *,
    drafter: Drafter | None = None,
    state: DecodeState | None = None,
    vstate: VerifyState | None = None,
    depth_cap: int | None = None,
    sampling: SpecSampling | None = None,
    stop: Collection[int] = (),
    on_commit: OnCommit = go_on,
) -> SpecRun:
    """At most n_new tokens after a prompt: those of plain decoding, greedy or drawn by position.

    drafter: the model's own when not given. depth_cap: rows of a round at most. A stop token is
    the last one; on_commit is called after every round. Errors: StateError and Refusal before
    anything runs, for what does not fit; afterwards the state is where plain decoding would be.
    """
    loop = open_loop(
        engine, prompt, n_new, drafter=drafter, state=state, vstate=vstate, depth_cap=depth_cap,
        sampling=sampling, stop=stop,
    )  # fmt: skip
    while not loop.done:
        before = len(loop.run.tokens)
        play_round(loop)
        if on_commit(loop.run.tokens[before:]):
            break
    return loop.run


def spec_greedy(
    engine: Engine,
    prompt: Sequence[int] | np.ndarray,
    n_new: int,
    state: DecodeState | None = None,
    drafter: Drafter | None = None,
    vstate: VerifyState | None = None,
) -> SpecRun:
    """`speculate`, greedy, with the depth of DSV4_SPEC_DEPTH."""
    return speculate(
        engine, prompt, n_new, drafter=drafter, state=state, vstate=vstate,
        depth_cap=engine.arms.spec_depth,
    )  # fmt: skip


def spec_greedy_depth(
    engine: Engine,
    prompt: Sequence[int] | np.ndarray,
    n_new: int,
    depth_cap: int,
    state: DecodeState | None = None,
    drafter: Drafter | None = None,
    vstate: VerifyState | None = None,
) -> SpecRun:
    """`speculate`, greedy, with rounds of at most depth_cap rows (at least 1)."""
    return speculate(
        engine, prompt, n_new, drafter=drafter, state=state, vstate=vstate, depth_cap=depth_cap
    )


def open_loop(
    engine: Engine,
    prompt: Sequence[int] | np.ndarray,
    n_new: int,
    *,
    drafter: Drafter | None = None,
    state: DecodeState | None = None,
    vstate: VerifyState | None = None,
    depth_cap: int | None = None,
    sampling: SpecSampling | None = None,
    stop: Collection[int] = (),
) -> SpecLoop:
    """A run after its prompt, its first token decided. Errors: as `speculate`."""
    if n_new < 0:
        raise StateError(
            f"{n_new} tokens were asked for\n  a run emits 0 or more\n"
            "  in dsv4.engine.speculate\n  ask for some"
        )
    ids = engine.check_ids(prompt, 0, "a speculative run")
    room = np.concatenate([ids, np.zeros(max(0, n_new - 1), np.int32)])
    engine.check_ids(room, 0, f"{n_new} tokens after a prompt of {len(ids)}")
    drafter = own_drafter(engine) if drafter is None else drafter
    vstate = alloc_verify_state(engine) if vstate is None else vstate
    state = engine.alloc_decode_state(rows=1) if state is None else state
    if sampling is not None:
        sampling.checked()
    shared = isinstance(drafter, SharedDrafter) and engine.tail == "mtp"
    if engine.arms.vt == "slot" and (shared or isinstance(drafter, NextnDrafter)):
        raise Refusal(
            "DSV4_VT=slot was asked for\n  the next-token block has no confidence\n"
            f"  from {engine.source.where}\n  unset DSV4_VT, or open a release with DSpark stages"
        )
    deepest = vstate.tmax if depth_cap is None else max(1, depth_cap)
    cap = min(drafter.block + 1, vstate.tmax, deepest)
    loop = SpecLoop(engine, drafter, state, vstate, n_new, cap, -1, sampling, stop)
    if n_new:
        begin = time.perf_counter()
        row = drafter.prime([int(t) for t in ids], state)
        loop.token = _chosen(loop, row, len(ids))
        loop.run.prime_s = time.perf_counter() - begin
    return loop


def play_round(loop: SpecLoop) -> None:
    """One round: draft, verify, commit, emit. Errors: as the parts; the loop can go on then.

    After a failed verify it needs a new `vstate`; after a failed `accept` a new drafter.
    """
    for _ in round_parts(loop):
        pass


def round_parts(loop: SpecLoop) -> Iterator[None]:
    """`play_round`, which stops once its verify is sent, and goes on when it is asked to.

    Meanwhile another loop, with another state, verify state and drafter, may send its own.
    """
    token, run, emitted = loop.token, loop.run, len(loop.run.tokens)
    if loop.carry or token in loop.stop:
        # Nothing is left to verify: the budget is spent, or nothing may follow.
        run.tokens.append(token)
        run.stopped = token in loop.stop
        return
    begin, first = time.perf_counter(), loop.state.pos
    drafts = loop.drafter.propose(token, first - 1)
    scores = () if drafts.confidence is None else tuple(float(c) for c in drafts.confidence)
    left = loop.budget - emitted - 1
    if not left:
        run.tokens.append(token)
        spent = time.perf_counter() - begin
        run.rounds.append(SpecRound(first - 1, drafts.tokens, 0, 0, 0, 0, scores, 1, spent))
        return
    rows = min(_window(loop, scores), left, 1 + len(drafts.tokens))
    asked = (token, *drafts.tokens[: rows - 1])
    verdict = _sent(loop, asked)
    yield
    accepted, following = _judge(loop, asked, first, verdict())
    kept = _up_to_stop(asked[: 1 + accepted], loop.stop)
    stopped = kept[-1] in loop.stop
    # A stop token is emitted and not consumed, as in plain decoding.
    consumed = kept[:-1] if stopped else kept
    commit_verify(loop.engine, loop.state, loop.vstate, len(consumed))
    run.tokens.extend(kept)
    run.stopped = stopped
    loop.token = following
    loop.carry = accepted == rows - 1 and rows == left and rows < loop.cap
    judged, spent = min(accepted + 1, rows - 1), time.perf_counter() - begin
    run.rounds.append(
        SpecRound(
            first - 1, drafts.tokens, accepted, judged, rows, loop.cap, scores, len(kept), spent
        )
    )
    loop.drafter.accept(consumed, first)


def _window(loop: SpecLoop, scores: Sequence[float]) -> int:
    """Rows that are worth verifying: all, or the leading drafts that the drafter believes in."""
    arms = loop.engine.arms
    if arms.vt != "slot" or not scores:
        return loop.cap
    # A score that is no number believes in nothing.
    believed = [-math.inf if math.isnan(s) else s for s in scores]
    rows = slot_window(believed, arms.vt_tau, loop.cap, floor=1 + arms.vt_floor)
    return min(rows, loop.cap)


def _sent(loop: SpecLoop, asked: Sequence[int]) -> Callable[[], VerifyOut]:
    """The verify of a round, sent."""
    return begin_verify(
        loop.engine, asked, loop.state, loop.vstate, loop.drafter.taps,
        want_logits=loop.sampling is not None,
    )  # fmt: skip


def _judge(loop: SpecLoop, asked: Sequence[int], first: int, out: VerifyOut) -> tuple[int, int]:
    """(how many drafts stay, the token after them) of a round that is verified."""
    if loop.sampling is None:
        choices = [int(t) for t in out.argmax]
    else:
        assert out.logits is not None
        choices = []
        for i, row in enumerate(out.logits):
            choices.append(draw_at(row, first + i + 1, loop.sampling))
            if i + 1 < len(asked) and choices[-1] != asked[i + 1]:
                break
    accepted = accept_prefix(asked, choices)
    return accepted, choices[accepted]


def _chosen(loop: SpecLoop, row: np.ndarray, position: int) -> int:
    if loop.sampling is None:
        return int(row.argmax())
    return draw_at(row, position, loop.sampling)


def _up_to_stop(tokens: Sequence[int], stop: Collection[int]) -> tuple[int, ...]:
    for place, token in enumerate(tokens):
        if token in stop:
            return tuple(tokens[: place + 1])
    return tuple(tokens)
