"""What a model writes behind prompts cut from texts, with drafts and without, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dsv4.engine.engine import Engine
from dsv4.engine.speculate import SpecRun, open_loop, play_round
from dsv4.engine.state import begin_again
from lab.evaluation.sequences import Sequences, sequences_of
from lab.evaluation.texts import Text
from lab.spec_run import first_difference


@dataclass(frozen=True, slots=True)
class FreeRuns:
    """Greedy continuations of prompts. first: (prompt, token) of the first difference, if any.

    places: (accepted, judged) by place of a draft. step_s, round_s: medians over all prompts.
    """

    prompts: int
    tokens: int
    differing: int
    first: tuple[int, int] | None
    rounds: int
    places: tuple[tuple[int, int], ...]
    step_s: float
    round_s: float

    @property
    def tokens_per_round(self) -> float:
        """Written tokens over rounds."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def plain_tokens_per_s(self) -> float:
        """Of the median step."""
        return 1 / self.step_s if self.step_s else 0.0

    @property
    def drafted_tokens_per_s(self) -> float:
        """Of the median round, with the mean tokens of a round."""
        return self.tokens_per_round / self.round_s if self.round_s else 0.0


def free_runs(
    engines: Sequence[Engine],
    texts: Sequence[Text],
    context: int,
    *,
    prompts: int,
    length: int,
    stop: Collection[int] = (),
    done: Callable[[int], None] = lambda prompts: None,
) -> list[FreeRuns]:
    """`length` tokens at most behind each of about so many prompts: by plain steps of the first
    engine, and by rounds of every engine, prompt by prompt in turn.

    engines: of one model, with their own switches of drafting. Prompts are what lies before places
    at even distances in the texts, as far as the context holds it beside the continuation.
    Errors: StateError without a drafter, or off the device path.
    """
    engine = engines[0]
    state = engine.alloc_decode_state(rows=1)
    sides = [_Side(sequences_of(e)) for e in engines]
    steps: list[float] = []
    for number, prompt in enumerate(prompts_of(texts, context - length, prompts)):
        begin_again(state)
        tokens = [int(engine.prefill_with_cache(prompt, state).logits.argmax())]
        while len(tokens) < length and tokens[-1] not in stop:
            begin = time.perf_counter()
            tokens.append(engine.decode_step_greedy(tokens[-1], state))
            steps.append(time.perf_counter() - begin)
        # Who goes first changes from prompt to prompt, for a card may be warmer behind another.
        for side in sides if number % 2 == 0 else sides[::-1]:
            side.write(number, prompt, length, stop, tokens)
        done(1)
    step_s = float(np.median(steps)) if steps else 0.0
    return [side.found(step_s) for side in sides]


@dataclass(slots=True)
class _Side:
    """An engine's rounds behind the prompts so far."""

    drafted: Sequences
    runs: list[SpecRun] = field(default_factory=list)
    differing: int = 0
    first: tuple[int, int] | None = None

    def write(
        self,
        number: int,
        prompt: Sequence[int],
        length: int,
        stop: Collection[int],
        plain: Sequence[int],
    ) -> None:
        """The continuation of a prompt, against what plain steps wrote."""
        engine, drafted = self.drafted.engine, self.drafted
        loop = open_loop(
            engine, prompt, length, drafter=drafted.begin(), state=drafted.state,
            vstate=drafted.rounds, depth_cap=engine.arms.spec_depth, stop=stop,
        )  # fmt: skip
        while not loop.done:
            play_round(loop)
        self.runs.append(loop.run)
        place = first_difference(plain, loop.run.tokens)
        self.differing += place is not None
        self.first = self.first or (None if place is None else (number, place))

    def found(self, step_s: float) -> FreeRuns:
        """All of it. step_s: of a plain step."""
        rounds = [r for run in self.runs for r in run.rounds]
        longest = max((r.judged for r in rounds), default=0)
        return FreeRuns(
            prompts=len(self.runs),
            tokens=sum(len(run.tokens) for run in self.runs),
            differing=self.differing,
            first=self.first,
            rounds=len(rounds),
            places=tuple(
                (sum(r.accepted > i for r in rounds), sum(r.judged > i for r in rounds))
                for i in range(longest)
            ),
            step_s=step_s,
            round_s=float(np.median([r.time_s for r in rounds])) if rounds else 0.0,
        )


def prompts_of(texts: Sequence[Text], room: int, count: int) -> Iterator[tuple[int, ...]]:
    """What lies before places at even distances, the last of them where the texts end."""
    total = sum(len(t.tokens) for t in texts)
    wanted = [(-(-total * (i + 1) // count)) for i in range(count)]
    first = 0
    for text in texts:
        end = first + len(text.tokens)
        for place in dict.fromkeys(w - first for w in wanted if first < w <= end):
            yield text.tokens[max(0, place - room) : place]
        first = end
