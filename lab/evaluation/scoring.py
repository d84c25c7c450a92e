"""How surprised a model is by a text: bits of every token, and the token it held likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.engine import Engine
from dsv4.engine.state import begin_again
from lab.evaluation.texts import Text
from lab.evaluation.windows import Overlap, Window
from oracle.trunk import Model, forward

SeeRows = Callable[[int, np.ndarray], None]
"""Called with the place of a row in the window and logits [n,V] of the rows from it on."""
Speaker = Callable[[Sequence[int], SeeRows], None]
"""Shows the logits of every row of a window of tokens, in order."""
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What a model says about the scored tokens of a text, in order: [n] each.

    bits: -log2 of the probability of the token. top1: the likeliest token, ties to the lowest.
    """

    bits: np.ndarray
    top1: np.ndarray


def engine_speaker(engine: Engine, by: str) -> Speaker:
    """The engine on one sequence after the other.

    by: "prompt" computes rows as a prompt does, in large pieces; "steps" as decoding does, eight
    rows at a time, which give the bytes of single steps. Errors: StateError for steps off the
    device path.
    """
    state = engine.alloc_decode_state(rows=1)
    rounds = engine.alloc_verify_state(VERIFY_ROWS) if by == "steps" else None

    def speak(ids: Sequence[int], see: SeeRows) -> None:
        begin_again(state)
        if rounds is None:
            engine.prefill_with_cache(ids, state, see_logits=see)
            return
        # Rounds follow a prompt, so the first row is one.
        engine.prefill_with_cache(ids[:1], state, see_logits=see)
        while state.pos < len(ids):
            first = state.pos
            piece = ids[first : first + VERIFY_ROWS]
            out = engine.verify_batch(piece, state, rounds, want_logits=True)
            assert out.logits is not None, "they were asked for"
            see(first, out.logits)
            engine.commit_verify(state, rounds, len(piece))

    return speak


def oracle_speaker(model: Model) -> Speaker:
    """The float64 model, from the definition of a whole forward pass."""

    def speak(ids: Sequence[int], see: SeeRows) -> None:
        see(0, forward(model, np.asarray(ids)).logits)

    return speak


def score(
    speaker: Speaker,
    text: Text,
    overlap: Overlap,
    done: Callable[[int], None] = lambda tokens: None,
) -> Scored:
    """What a speaker says about a text. done: called with the tokens scored since its last call.

    Rounds: log-sum-exp in float64, whatever the logits are in.
    """
    bits: list[np.ndarray] = []
    top1: list[np.ndarray] = []
    tokens = np.asarray(text.tokens)
    for window in overlap.windows(len(tokens)):

        def see(place: int, logits: np.ndarray, window: Window = window) -> None:
            known = max(0, window.fresh - window.start - place)
            for first in range(known, len(logits), _ROWS_AT_ONCE):
                rows = logits[first : first + _ROWS_AT_ONCE].astype(np.float64)
                spoken = window.start + place + first + 1
                wanted = tokens[spoken : spoken + len(rows)]
                most = rows.max(axis=1)
                total = most + np.log(np.exp(rows - most[:, None]).sum(axis=1))
                bits.append((total - rows[np.arange(len(rows)), wanted]) / np.log(2.0))
                top1.append(rows.argmax(axis=1))

        speaker(text.tokens[window.start : window.end], see)
        done(window.end - window.fresh)
    if not bits:
        return Scored(np.zeros(0), np.zeros(0, np.int64))
    return Scored(np.concatenate(bits), np.concatenate(top1))


@dataclass(frozen=True, slots=True)
class Agreement:
    """One model beside another on the same tokens.

    difference: of bits per byte, the other's less the first's; relative: over the first's.
    """

    positions: int
    same: int
    bits_per_byte: float
    difference: float
    relative: float

    @property
    def top1(self) -> float:
        """The share of positions at which both hold the same token likeliest."""
        return self.same / self.positions if self.positions else 1.0


def total_bits(texts: Sequence[Text], scored: Sequence[Scored]) -> float:
    """Bits of all texts; a byte that no row speaks about takes eight."""
    return sum(float(s.bits.sum()) + 8.0 * t.unscored for t, s in zip(texts, scored, strict=True))


def agreement(texts: Sequence[Text], a: Sequence[Scored], b: Sequence[Scored]) -> Agreement:
    """The second model beside the first one."""
    size = sum(len(t.content) for t in texts)
    first, second = total_bits(texts, a) / size, total_bits(texts, b) / size
    return Agreement(
        positions=sum(len(s.top1) for s in a),
        same=sum(int((x.top1 == y.top1).sum()) for x, y in zip(a, b, strict=True)),
        bits_per_byte=second,
        difference=second - first,
        relative=(second - first) / first if first else 0.0,
    )
