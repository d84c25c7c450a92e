"""Long speculative runs, watched after every round: tokens, caches and rings of plain decoding.

Every prompt length around windows and blocks, every depth of a round, every number of right drafts,
on the recorded folders and on made models of three layouts. A run of one small model is in the
plain suite; the sweep is marked `stress` and runs on either backend.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dsv4.engine.drafting import Drafter, Drafts, own_drafter
from dsv4.engine.engine import Engine
from dsv4.engine.source import config_of, open_source
from dsv4.engine.speculate import SpecLoop, open_loop, play_round
from dsv4.engine.state import DecodeState
from dsv4.speculation.sampling import SpecSampling
from lab import testing
from lab.minted import model_of
from lab.scripted import ScriptedDrafter
from lab.spec_gates import rings_of
from lab.spec_run import with_drafter
from tests.engine.speculation import plain_tokens
from tests.goldens import golden_folder

BLOCK = 5
NEW_TOKENS = 300
MADE = {
    "made-0731": "mint:tiny,layout=0731,seed=1,agree=0.7",
    "made-nextn": "mint:tiny,layout=nextn,seed=2,agree=0.7",
    "made-0731-nvfp4": "mint:tiny,layout=0731-nvfp4,seed=3,agree=0.7",
}
MODELS = ("tiny-s", "tiny-a", "tiny-long", "tiny-nextn", *MADE)
BACKENDS = ("host", pytest.param("cuda", marks=pytest.mark.gpu))


@functools.lru_cache(maxsize=4)
def model(name: str, backend: str) -> Engine:
    """An engine with its own drafter and room for the longest run, or for all that fits."""
    if backend == "cuda":
        testing.cuda()
    where = MADE.get(name) or str(golden_folder(name))
    longest = config_of(open_source(model_of(where))).usable_positions
    room = min(longest, 257 + NEW_TOKENS + BLOCK)
    return Engine.load(model_of(where), backend=backend, max_seq=room, **with_drafter(where, {}))


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
    return Plain(tuple(made), caches, watched.seen)


def watch(loop: SpecLoop, plain: Plain) -> None:
    """Play a run to its end; after each round its state is that of plain decoding."""
    while not loop.done:
        play_round(loop)
        if loop.state.pos in plain.caches:
            assert digest(loop.engine.cache_classes(loop.state)) == plain.caches[loop.state.pos]
    assert tuple(loop.run.tokens) == plain.tokens


def sweep(engine: Engine, length: int, count: int) -> None:
    """One prompt: every depth with every number of right drafts, then the model's own drafts."""
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
    watch(open_loop(engine, prompt, count, drafter=watched), plain)
    assert watched.seen and watched.seen.items() <= plain.rings.items()


def lengths(engine: Engine) -> list[int]:
    """Prompts around the window, the blocks and the longest coarse block, as far as they fit."""
    window = engine.config.window_size
    wanted = {1, window - 1, window, window + 1, 127, 128, 129, 255, 256, 257}
    return sorted(n for n in wanted if n + 8 + BLOCK < engine.max_seq)


def test_a_short_run_is_plain_after_every_round() -> None:
    sweep(model("made-0731", "host"), 17, 20)


@pytest.mark.stress
@pytest.mark.parametrize("which", range(10))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_round_of_long_runs_is_plain(backend: str, name: str, which: int) -> None:
    engine = model(name, backend)
    if which >= len(lengths(engine)):
        pytest.skip(f"{name} has {engine.max_seq} positions")
    length = lengths(engine)[which]
    sweep(engine, length, min(NEW_TOKENS, engine.max_seq - length - BLOCK))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_streams_are_those_of_plain_draws(backend: str, name: str, seed: int) -> None:
    engine = model(name, backend)
    count = min(NEW_TOKENS, engine.max_seq - 17 - BLOCK)
    prompt = np.random.default_rng(seed).integers(0, engine.config.vocab_size, 17).tolist()
    how = SpecSampling(
        0.5 + seed / 10, seed=seed, top_p=1.0 - 0.02 * (seed % 5), top_k=seed % 3 * 20
    )
    want, plain = plain_tokens(engine, prompt, count, how)
    loop = open_loop(engine, prompt, count, sampling=how)
    while not loop.done:
        play_round(loop)
    assert tuple(loop.run.tokens) == want
    assert digest(engine.cache_classes(loop.state)) == digest(engine.cache_classes(plain))
