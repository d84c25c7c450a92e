"""A drafter that reads from a script, so that any run of acceptances can be played on any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsv4.engine.drafting import Drafts
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.engine.taps import Taps


@dataclass(slots=True)
class ScriptedDrafter:
    """Proposes what really follows, up to the first wrong draft of each proposal.

    following: the true tokens from position `start` on. right: how many drafts of the n-th proposal
    are right. confidence: as high where a draft is right as it is low where it is not.
    """

    engine: Engine
    block: int
    following: Sequence[int]
    start: int
    right: Callable[[int], int]
    taps: Taps | None = None
    proposals: int = 0

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """The logits after a prompt."""
        return self.engine.prefill_with_cache(prompt, state).logits

    def propose(self, token: int, pos: int) -> Drafts:
        """The script behind a token at position pos + 1, wrong from some draft on."""
        first = pos + 2 - self.start
        true = [int(t) for t in self.following[first : first + self.block]]
        true += [0] * (self.block - len(true))
        right = self.right(self.proposals)
        self.proposals += 1
        vocabulary = self.engine.config.vocab_size
        drafts = [t if i < right else (t + 1) % vocabulary for i, t in enumerate(true)]
        scores = np.where(np.arange(self.block) < right, 3.0, -3.0)
        return Drafts(tuple(drafts), scores.astype(np.float32))

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """Nothing: a script learns nothing."""


def with_probability(share: float, block: int, seed: int = 0) -> Callable[[int], int]:
    """How many drafts are right when each one is with that probability, by proposal."""

    def right(proposal: int) -> int:
        drawn = np.random.default_rng((seed, proposal)).random(block) < share
        return int(np.cumprod(drawn).sum())

    return right
