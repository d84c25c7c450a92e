"""Greedy text from the engine: a prompt, then one token after the other, with times."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.engine.engine import Engine
from dsv4.engine.interleave import generate_together
from dsv4.engine.speculate import SpecRun, speculate
from dsv4.engine.state import DecodeState
from dsv4.errors import Refusal
from dsv4.speculation.draws import draw_at
from dsv4.speculation.sampling import SpecSampling

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Generated:
    """tokens: what came after the prompt. stopped: whether a stop token ended it.

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
) -> Generated:
    """Up to `count` tokens after a prompt, greedy or drawn by position.

    A stop token ends it and is the last one. Errors: StateError for a prompt that does not fit with
    its continuation, DrafterRefusal for a sampling that cannot be.
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
    while len(tokens) < count and tokens[-1] not in stop:
        began = time.perf_counter()
        if sampling is None:
            tokens.append(engine.decode_step_greedy(tokens[-1], state))
        else:
            tokens.append(choose(engine.decode_step(tokens[-1], state)))
        steps.append(time.perf_counter() - began)
        on_token(tokens[-1])
    end = time.perf_counter()
    stopped = tokens[-1] in stop
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
) -> Generated:
    """The tokens of `generate`, by rounds of the model's own drafter. Errors: as there."""

    def show(tokens: Sequence[int]) -> bool:
        for token in tokens:
            on_token(token)
        return False

    begin = time.perf_counter()
    run = speculate(
        engine, prompt, count, state=state, depth_cap=depth_cap or engine.arms.spec_depth,
        sampling=sampling, stop=stop, on_commit=show,
    )  # fmt: skip
    spent = time.perf_counter() - begin - run.prime_s
    return Generated(tuple(prompt), tuple(run.tokens), run.stopped, run.prime_s, spent, run)


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


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer beside a checkpoint.

    Errors: Refusal when it, or the extra `text`, is missing.
    """
    file = folder / TOKENIZER
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Refusal(
            "text was given\n  the package tokenizers is not installed\n  in this environment\n"
            '  install the extra: pip install "dsv4-lab[text]", or give --ids'
        ) from None
    if not file.is_file():
        raise Refusal(
            f"text was given\n  there is no {TOKENIZER}\n  in {folder}\n"
            "  fetch it with the checkpoint, or give --ids"
        )
    return Tokenizer.from_file(str(file))
