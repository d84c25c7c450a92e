"""Speculative runs held after every round against plain decoding: tokens, caches and rings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.engine.drafting import Drafter, Drafts, own_drafter
from dsv4.engine.engine import Engine
from dsv4.engine.speculate import SpecLoop, open_loop, play_round
from dsv4.engine.state import DecodeState
from lab.scripted import ScriptedDrafter
from lab.spec_gates import rings_of

BLOCK = 5


def digest(classes: Iterable[tuple[str, np.ndarray]]) -> str:
    """One digest of named arrays."""
    made = hashlib.sha256()
    for name, content in classes:
        made.update(name.encode() + np.ascontiguousarray(content).tobytes())
    return made.hexdigest()


@dataclass(slots=True)
class Watched:
    """A drafter whose rings are noted after each proposal, by position."""

    engine: Engine
    drafter: Drafter
    seen: dict[int, str] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """How many drafts a proposal has."""
        return self.drafter.block

    @property
    def taps(self) -> Any:
        """The taps of the drafter."""
        return self.drafter.taps

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """As the drafter's."""
        return self.drafter.prime(prompt, state)

    def propose(self, token: int, pos: int) -> Drafts:
        """As the drafter's; then its rings are noted."""
        made = self.drafter.propose(token, pos)
        self.seen[pos] = digest(rings_of(self.engine, self.drafter).items())
        return made

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """As the drafter's."""
        self.drafter.accept(tokens, pos)


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain decoding: its tokens, and digests of caches and of rings by position."""

    tokens: tuple[int, ...]
    caches: dict[int, str]
    rings: dict[int, str]


def plain_run(engine: Engine, prompt: Sequence[int], count: int) -> Plain:
    """Single steps, each followed by the drafter, with everything noted."""
    watched, state = Watched(engine, own_drafter(engine)), engine.alloc_decode_state(rows=1)
    made = [int(watched.prime(prompt, state).argmax())]
    caches: dict[int, str] = {}
    while len(made) < count:
        watched.propose(made[-1], state.pos - 1)
        following = engine.decode_step_greedy_tap(made[-1], state, watched.taps, 0)
        watched.accept([made[-1]], state.pos - 1)
        caches[state.pos] = digest(engine.cache_classes(state))
        made.append(following)
    # A run whose budget ends with a round proposes once more behind its last token.
    watched.propose(made[-1], state.pos - 1)
    return Plain(tuple(made), caches, watched.seen)


def watch(loop: SpecLoop, plain: Plain) -> None:
    """Play a run to its end; after each round its state is that of plain decoding."""
    while not loop.done:
        play_round(loop)
        if loop.state.pos in plain.caches:
            assert digest(loop.engine.cache_classes(loop.state)) == plain.caches[loop.state.pos]
    assert tuple(loop.run.tokens) == plain.tokens


def sweep(engine: Engine, length: int, count: int) -> SpecLoop:
    """One prompt: every depth with every number of right drafts, then the model's own drafts.

    Returns the run of its own drafts.
    """
    prompt = np.random.default_rng(length).integers(0, engine.config.vocab_size, length).tolist()
    plain = plain_run(engine, prompt, count)
    for depth in range(1, BLOCK + 2):
        drafter = ScriptedDrafter(engine, BLOCK, plain.tokens, length, lambda n: n * 5 % 6)
        loop = open_loop(
            engine, prompt, count, drafter=drafter, vstate=engine.alloc_verify_state(BLOCK + 1),
            depth_cap=depth,
        )  # fmt: skip
        watch(loop, plain)
        played = {r.accepted for r in loop.run.rounds if r.rows == depth}
        assert played == set(range(depth)) or count < 40
    watched = Watched(engine, own_drafter(engine))
    own = open_loop(engine, prompt, count, drafter=watched)
    watch(own, plain)
    assert watched.seen and watched.seen.items() <= plain.rings.items()
    return own
