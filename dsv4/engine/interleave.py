"""Several sequences at once: while a later stage runs one, the stages before run another.

A sequence is a generator that stops whenever it has sent something and has yet to wait for it. The
sequences take turns, so what one waits for runs while the next one sends. Each has its own state,
and its tokens are those it would have alone: nothing but the order of launches changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4.engine import decode
from dsv4.engine.drafting import Drafter
from dsv4.engine.speculate import SpecLoop, SpecRun, open_loop, round_parts
from dsv4.engine.state import DecodeState
from dsv4.errors import StateError

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine

Turns = Iterator[None]
"""A sequence that stops whenever another one may send."""


def take_turns(sequences: Sequence[Turns]) -> None:
    """Run all to their ends, each a part at a time, in order. Errors: as theirs, at once."""
    running = list(sequences)
    while running:
        running = [one for one in running if _goes_on(one)]


def step_turns(engine: Engine, tok: int, state: DecodeState, into: list[int]) -> Turns:
    """One greedy step; the token after it is appended. Errors: as `Engine.decode_step_greedy`."""
    with engine.stepping(state, (tok,)) as ids:
        if not engine.arms.decode_path.on_device:
            into.append(int(decode.step_greedy(engine, state, ids)[0]))
            return
        finish = decode.begin_step(engine, state, ids, "greedy")
        yield
        into.append(int(finish()[0]))


def greedy_turns(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    state: DecodeState,
    into: list[int],
    *,
    stop: Collection[int] = (),
) -> Turns:
    """Greedy tokens after a prompt, at most `count`, appended as they come; a stop token ends it.

    Errors: StateError, before anything runs, for a prompt that does not fit with its continuation.
    """
    engine.check_ids([*prompt, *[0] * (count - 1)], 0, f"{count} tokens after a prompt")
    into.append(int(engine.prefill_with_cache(prompt, state).logits.argmax()))
    # Prompts run one after the other: only what follows is cut into parts.
    yield
    while len(into) < count and into[-1] not in stop:
        yield from step_turns(engine, into[-1], state, into)


def spec_turns(loop: SpecLoop) -> Turns:
    """The rounds of a loop until its budget is spent."""
    while not loop.done:
        yield from round_parts(loop)


@dataclass(slots=True)
class Together:
    """What came of several sequences. tokens: of each. runs: their rounds, if speculative."""

    tokens: list[list[int]]
    runs: list[SpecRun]


def generate_together(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    stop: Collection[int] = (),
    speculative: bool = False,
    drafters: Sequence[Drafter] | None = None,
    depth_cap: int | None = None,
) -> Together:
    """Greedy tokens after each prompt, with turns: those of one run after the other.

    drafters: one for each sequence instead of the model's own. Errors: StateError without prompts,
    and as `greedy_turns` or `open_loop`.
    """
    if not prompts or count < 1:
        raise StateError(
            f"{count} tokens after {len(prompts)} prompts were asked for\n  that is nothing\n"
            "  in dsv4.engine.interleave\n  give prompts, and a count of 1 or more"
        )
    if not speculative:
        tokens: list[list[int]] = [[] for _ in prompts]
        states = [engine.alloc_decode_state(rows=1) for _ in prompts]
        take_turns([
            greedy_turns(engine, p, count, s, t, stop=stop)
            for p, s, t in zip(prompts, states, tokens, strict=True)
        ])  # fmt: skip
        return Together(tokens, [])
    loops = [
        open_loop(
            engine, prompt, count, stop=stop, depth_cap=depth_cap,
            drafter=None if drafters is None else drafters[i],
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    take_turns([spec_turns(loop) for loop in loops])
    return Together([loop.run.tokens for loop in loops], [loop.run for loop in loops])


def _goes_on(one: Turns) -> bool:
    try:
        next(one)
    except StopIteration:
        return False
    return True
