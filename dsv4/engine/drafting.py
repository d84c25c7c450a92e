"""Drafters as a speculative run sees them: they propose, and take over what was committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsv4.engine.draft import dspark_forward_spec
from dsv4.engine.dspark import (
    DsparkState,
    dspark_alloc_state,
    dspark_prefill_prime,
    dspark_write_rings,
)
from dsv4.engine.nextn import (
    MtpState,
    mtp_accept,
    mtp_alloc_state,
    mtp_prefill_prime,
    mtp_propose,
)
from dsv4.engine.state import DecodeState
from dsv4.engine.taps import Taps

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposed tokens, and the drafter's confidence in each (None when it has none)."""

    tokens: tuple[int, ...]
    confidence: np.ndarray | None = None


class Drafter(Protocol):
    """Proposes tokens behind a committed prefix; it never changes what is emitted."""

    @property
    def block(self) -> int:
        """How many tokens a proposal has at most."""

    @property
    def taps(self) -> Taps | None:
        """What rounds have to tap for it."""

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """The logits after a prompt on a fresh state; the drafter has seen it afterwards."""

    def propose(self, token: int, pos: int) -> Drafts:
        """Drafts behind a token at position pos + 1, all positions to pos being committed."""

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """Take over committed tokens of positions pos.., which the last round tapped in order."""


@dataclass(slots=True)
class DsparkDrafter:
    """The drafter of the 0731 release."""

    engine: Engine
    dstate: DsparkState
    row: int = 0

    @property
    def block(self) -> int:
        """How many tokens a proposal has."""
        return self.engine.config.dspark_block_size

    @property
    def taps(self) -> Taps:
        """Means of the target layers."""
        return self.dstate.taps

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """The logits after a prompt, whose rings are filled in the same pass."""
        return dspark_prefill_prime(self.engine, prompt, state, self.dstate).logits

    def propose(self, token: int, pos: int) -> Drafts:
        """A block of drafts."""
        made = dspark_forward_spec(self.engine, self.dstate, token, self.row, pos)
        return Drafts(tuple(int(t) for t in made.out_ids[1:]), made.confidence)

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """Write the rings of committed positions."""
        dspark_write_rings(self.engine, self.dstate, 0, pos, len(tokens))
        self.row = len(tokens) - 1


@dataclass(slots=True)
class NextnDrafter:
    """The next-token block of the original release: one draft a round, without a confidence."""

    engine: Engine
    mstate: MtpState
    block: int = 1

    @property
    def taps(self) -> Taps:
        """The streams after the last layer."""
        return self.mstate.taps

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """The logits after a prompt, whose ring is filled as well."""
        return mtp_prefill_prime(self.engine, prompt, state, self.mstate).logits

    def propose(self, token: int, pos: int) -> Drafts:
        """One draft."""
        return Drafts((mtp_propose(self.engine, self.mstate, token, pos),))

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """Remember what follows the committed rows."""
        mtp_accept(self.engine, self.mstate, tokens, pos)


@dataclass(slots=True)
class SharedDrafter:
    """The drafter of the last process, as all processes see it. own: on the last one alone."""

    engine: Engine
    own: Drafter | None

    @property
    def block(self) -> int:
        """How many tokens a proposal has."""
        return self.engine.config.dspark_block_size if self.engine.tail == "dspark" else 1

    @property
    def taps(self) -> Taps | None:
        """Those of the last process."""
        return None if self.own is None else self.own.taps

    def prime(self, prompt: Sequence[int], state: DecodeState) -> np.ndarray:
        """The logits after a prompt, which goes through all stages."""
        if self.own is None:
            return self.engine.prefill_with_cache(prompt, state).logits
        return self.own.prime(prompt, state)

    def propose(self, token: int, pos: int) -> Drafts:
        """The drafts of the last process, with the bits of its confidence."""
        links, made = self.engine.links, None
        assert links is not None, "a drafter is shared between processes"
        if self.own is not None:
            drafts = self.own.propose(token, pos)
            scores = np.empty(0, np.float32) if drafts.confidence is None else drafts.confidence
            made = np.concatenate([np.array(drafts.tokens, np.int32), scores.view(np.int32)])
        words = links.share(made)
        tokens = tuple(int(t) for t in words[: self.block])
        scored = len(words) > self.block
        return Drafts(tokens, words[self.block :].view(np.float32) if scored else None)

    def accept(self, tokens: Sequence[int], pos: int) -> None:
        """Taken over by the last process."""
        if self.own is not None:
            self.own.accept(tokens, pos)


def own_drafter(engine: Engine) -> Drafter:
    """A drafter of the model's own blocks, for one sequence. Errors: StateError without any."""
    if engine.links is not None:
        here = engine.last.exit is not None or engine.tail == "off"
        return SharedDrafter(engine, _drafter(engine) if here else None)
    return _drafter(engine)


def _drafter(engine: Engine) -> Drafter:
    if engine.dspark is None and engine.mtp is not None:
        return NextnDrafter(engine, mtp_alloc_state(engine))
    return DsparkDrafter(engine, dspark_alloc_state(engine))
