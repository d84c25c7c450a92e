"""Greedy text from the engine: a prompt, then one token after the other, with times."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.engine.engine import Engine
from dsv4.errors import Refusal

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Generated:
    """tokens: what came after the prompt. stopped: whether a stop token ended it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    stopped: bool
    prefill_s: float
    decode_s: float

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
    on_token: Callable[[int], None] = lambda token: None,
) -> Generated:
    """Up to `count` greedy tokens after a prompt; a stop token ends it and is the last one.

    Errors: StateError for a prompt that does not fit with its continuation.
    """
    engine.check_ids([*prompt, *[0] * (count - 1)], 0, f"{count} tokens after a prompt")
    state = engine.alloc_decode_state()
    begin = time.perf_counter()
    out = engine.prefill_with_cache(prompt, state)
    tokens = [int(out.logits.argmax())]
    middle = time.perf_counter()
    on_token(tokens[-1])
    while len(tokens) < count and tokens[-1] not in stop:
        tokens.append(engine.decode_step_greedy(tokens[-1], state))
        on_token(tokens[-1])
    end = time.perf_counter()
    stopped = tokens[-1] in stop
    return Generated(tuple(prompt), tuple(tokens), stopped, middle - begin, end - middle)


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
