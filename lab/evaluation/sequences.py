"""One sequence after the other through what is bound once: a state, its rounds and a drafter."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4.engine.drafting import Drafter, DsparkDrafter, own_drafter
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState, begin_again
from dsv4.engine.verify import VerifyState


@dataclass(slots=True, eq=False)
class Sequences:
    """What sequences with drafts run on. Recorded rounds cost much more than rounds."""

    engine: Engine
    state: DecodeState
    rounds: VerifyState
    first: Drafter

    def begin(self) -> Drafter:
        """A drafter for a new sequence on `state`, which has forgotten the one before.

        Errors: StateError where the sequence before was left in the middle of a round.
        """
        begin_again(self.state)
        if isinstance(self.first, DsparkDrafter):
            self.first.dstate.begin_again()
            return DsparkDrafter(self.engine, self.first.dstate)
        return own_drafter(self.engine)


def sequences_of(engine: Engine) -> Sequences:
    """Memory for sequences of an engine. Errors: StateError without a drafter, or off the device
    path.
    """
    state, rounds = engine.alloc_decode_state(rows=1), engine.alloc_verify_state()
    return Sequences(engine, state, rounds, own_drafter(engine))
