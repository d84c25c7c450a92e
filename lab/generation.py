"""Greedy text from the engine: a prompt, then one token after the other, with times."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from dsv4.engine.engine import Engine
from dsv4.engine.interleave import generate_together
from dsv4.engine.speculate import SpecRound, SpecRun, open_loop, play_round
from dsv4.engine.state import DecodeState
from dsv4.speculation.draws import draw_at
from dsv4.speculation.sampling import SpecSampling

Until = Callable[[Sequence[int]], bool]
"""Called with the tokens so far; True ends the text with the last of them."""
OnRound = Callable[[SpecRound | None, Sequence[int]], None]
"""Called after every round with it and what it emitted, without what `until` cut off; without a
round for a last token that needed none."""


def never(tokens: Sequence[int]) -> bool:
    """The rule that ends nothing."""
    return False


@dataclass(frozen=True, slots=True)
class Generated:
    """tokens: what came after the prompt. stopped: whether a stop token or a rule ended it.

    run: the rounds of a speculative one. step_s: the median step of a plain one, which forgets the
    steps that bind and record; 0 without steps.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    stopped: bool
    prefill_s: float
    decode_s: float
    run: SpecRun | None = None
    step_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Steps per second; the first token comes from the prompt."""
        steps = len(self.tokens) - 1
        return steps / self.decode_s if steps > 0 and self.decode_s > 0 else 0.0


def generate(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    *,
    stop: Collection[int] = (),
    sampling: SpecSampling | None = None,
    state: DecodeState | None = None,
    on_token: Callable[[int], None] = lambda token: None,
    until: Until = never,
) -> Generated:
    """Up to `count` tokens after a prompt, greedy or drawn by position.

    A stop token ends it and is the last one, as is the one at which `until` ends it.
    Errors: StateError for a prompt that does not fit with its continuation, DrafterRefusal for a
    sampling that cannot be.
    """
    engine.check_ids([*prompt, *[0] * (count - 1)], 0, f"{count} tokens after a prompt")
    state = engine.alloc_decode_state(rows=1) if state is None else state

    def choose(row: np.ndarray) -> int:
        return int(row.argmax()) if sampling is None else draw_at(row, state.pos, sampling)

    begin = time.perf_counter()
    out = engine.prefill_with_cache(prompt, state)
    tokens = [choose(out.logits)]
    middle = time.perf_counter()
    on_token(tokens[-1])
    steps: list[float] = []
    ended = until(tokens)
    while len(tokens) < count and tokens[-1] not in stop and not ended:
        began = time.perf_counter()
        if sampling is None:
            tokens.append(engine.decode_step_greedy(tokens[-1], state))
        else:
            tokens.append(choose(engine.decode_step(tokens[-1], state)))
        steps.append(time.perf_counter() - began)
        on_token(tokens[-1])
        ended = until(tokens)
    end = time.perf_counter()
    stopped = ended or tokens[-1] in stop
    return Generated(
        tuple(prompt), tuple(tokens), stopped, middle - begin, end - middle,
        step_s=float(np.median(steps)) if steps else 0.0,
    )  # fmt: skip


def generate_spec(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    *,
    stop: Collection[int] = (),
    sampling: SpecSampling | None = None,
    depth_cap: int | None = None,
    state: DecodeState | None = None,
    on_token: Callable[[int], None] = lambda token: None,
    on_round: OnRound = lambda made, tokens: None,
    until: Until = never,
) -> Generated:
    """The tokens of `generate`, by rounds of the model's own drafter. Errors: as there."""
    kept: list[int] = []
    begin = time.perf_counter()
    loop = open_loop(
        engine, prompt, count, state=state, depth_cap=depth_cap or engine.arms.spec_depth,
        sampling=sampling, stop=stop,
    )  # fmt: skip
    run, ended = loop.run, False
    while not loop.done and not ended:
        first, rounds = len(kept), len(run.rounds)
        play_round(loop)
        for token in run.tokens[first:]:
            kept.append(token)
            on_token(token)
            if ended := until(kept):
                break
        on_round(run.rounds[-1] if len(run.rounds) > rounds else None, kept[first:])
    spent = time.perf_counter() - begin - run.prime_s
    stopped = ended or run.stopped
    return Generated(tuple(prompt), tuple(kept), stopped, run.prime_s, spent, run)


@dataclass(frozen=True, slots=True)
class Streams:
    """What came after several prompts that took turns, and their time, prompts included."""

    streams: tuple[tuple[int, ...], ...]
    decode_s: float


def generate_streams(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    stop: Collection[int] = (),
    speculative: bool = False,
) -> Streams:
    """Up to `count` greedy tokens after each prompt, all at once: those of one after the other.

    Errors: as `generate_together`.
    """
    begin = time.perf_counter()
    made = generate_together(
        engine, prompts, count, stop=stop, speculative=speculative,
        depth_cap=engine.arms.spec_depth if speculative else None,
    )  # fmt: skip
    return Streams(tuple(map(tuple, made.tokens)), time.perf_counter() - begin)
