"""How far a drafter's proposals are accepted behind prefixes of a real text.

Prefixes are the text's, not the model's own: after each of them one round is played, the text's
next token first and the drafts behind it, and judged by the trunk's greedy choices. Then the round
is taken back as far as it left the text. So every arm drafts behind the same prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from dsv4.engine.drafting import Drafter, NextnDrafter
from dsv4.engine.engine import Engine
from dsv4.speculation.accept import accept_prefix
from dsv4.speculation.window import slot_window
from lab.evaluation.sequences import Sequences, sequences_of
from lab.evaluation.texts import Text


@dataclass(frozen=True, slots=True)
class ForcedRound:
    """One round behind a prefix. accepted: leading drafts that the trunk would choose itself.

    confidence: raw scores of the drafts, None without a confidence head.
    """

    prefix: int
    drafts: tuple[int, ...]
    accepted: int
    confidence: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What rounds come to. places: (accepted, judged) by place of a draft, up to the first wrong
    one. rows: of the verify, in the mean.
    """

    rounds: int
    tokens_per_round: float
    rows: float
    places: tuple[tuple[int, int], ...]


def forced_rounds(
    engine: Engine,
    texts: Sequence[Text],
    context: int,
    *,
    every: int,
    most: int,
    done: Callable[[int], None] = lambda rounds: None,
) -> list[ForcedRound]:
    """About `most` rounds, spread over all texts, behind prefixes at least `every` tokens apart.

    A text longer than the context is begun anew behind each context of it. Errors: StateError
    without a drafter, or off the device path.
    """
    found: list[ForcedRound] = []
    pieces, on = _pieces(texts, context, every), sequences_of(engine)
    for number, piece in enumerate(pieces):
        share = -(-(most - len(found)) // (len(pieces) - number))
        if share < 1:
            break
        apart = max(every, -(-len(piece) // (share + 1)))
        for made in _rounds(on, piece, apart):
            found.append(made)
            done(1)
    return found


def _pieces(texts: Sequence[Text], context: int, every: int) -> list[tuple[int, ...]]:
    """Texts cut to contexts, without what is too short for a round."""
    cut = [
        t.tokens[first : first + context]
        for t in texts
        for first in range(0, len(t.tokens), context)
    ]
    return [piece for piece in cut if len(piece) > every + 1]


def _rounds(on: Sequences, ids: Sequence[int], every: int) -> Iterator[ForcedRound]:
    engine, state, drafter = on.engine, on.state, on.begin()
    drafter.prime(ids[:every], state)
    for prefix in range(every, len(ids), every):
        _walk(on, drafter, ids[state.pos : prefix])
        if prefix + drafter.block + 1 > engine.max_seq:
            return
        drafts = drafter.propose(ids[prefix], prefix - 1)
        asked = (ids[prefix], *drafts.tokens)
        out = engine.verify_batch(asked, state, on.rounds, drafter.taps)
        kept = _common(asked, ids[prefix : prefix + every])
        engine.commit_verify(state, on.rounds, kept)
        drafter.accept(asked[:kept], prefix)
        scores = drafts.confidence
        yield ForcedRound(
            prefix,
            drafts.tokens,
            accept_prefix(asked, [int(t) for t in out.argmax]),
            None if scores is None else tuple(float(c) for c in scores),
        )


def _common(asked: Sequence[int], following: Sequence[int]) -> int:
    """How many leading tokens of a round are the text's."""
    pairs = zip(asked, following, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _walk(on: Sequences, drafter: Drafter, ids: Sequence[int]) -> None:
    """Take over tokens of the text, as if rounds had accepted them."""
    for first in range(0, len(ids), on.rounds.tmax):
        piece, begin = ids[first : first + on.rounds.tmax], on.state.pos
        if isinstance(drafter, NextnDrafter):
            # Its block sees a position only once the next token is known, which a draft tells it.
            drafter.propose(piece[0], begin - 1)
        on.engine.verify_batch(piece, on.state, on.rounds, drafter.taps)
        on.engine.commit_verify(on.state, on.rounds, len(piece))
        drafter.accept(piece, begin)


def acceptance(
    rounds: Sequence[ForcedRound], window: tuple[float, int] | None = None
) -> Acceptance:
    """What the rounds come to when all drafts are verified, or those a window lets through.

    window: (the confidence that a row needs, drafts that are verified in any case). A shorter
    verify judges its rows as a longer one does, so nothing is run again.
    """
    verified = [_verified(r, window) for r in rounds]
    accepted = [min(r.accepted, v) for r, v in zip(rounds, verified, strict=True)]
    longest = max(verified, default=0)
    places = tuple(
        (
            sum(a > i for a in accepted),
            sum(a >= i and v > i for a, v in zip(accepted, verified, strict=True)),
        )
        for i in range(longest)
    )
    return Acceptance(
        rounds=len(rounds),
        tokens_per_round=1 + float(np.mean(accepted)) if rounds else 0.0,
        rows=1 + float(np.mean(verified)) if rounds else 0.0,
        places=places,
    )


def _verified(made: ForcedRound, window: tuple[float, int] | None) -> int:
    """Drafts that are verified, as the engine's rounds decide it."""
    most = len(made.drafts)
    if window is None or made.confidence is None:
        return most
    tau, floor = window
    scores = np.asarray(made.confidence)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    return min(slot_window(scores, tau, most + 1, floor=1 + floor) - 1, most)
