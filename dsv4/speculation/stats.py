"""What a speculative run counts: accepted drafts, tokens a round, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

PHASES: Final = ("draft", "snapshot", "verify", "rollback", "ingest")


@dataclass(frozen=True, slots=True)
class Round:
    """One round: where its anchor stood, what was proposed, how much was verified and kept."""

    start: int
    anchor: int
    drafts: tuple[int, ...]
    vt: int
    accepted: int
    next_token: int

    @property
    def keep(self) -> int:
        """Rows that stay committed: the anchor and the accepted drafts."""
        return self.accepted + 1


@dataclass(slots=True)
class SpecStats:
    """Counters of a run; phase seconds are filled only when they are asked for."""

    rounds: list[Round] = field(default_factory=list)
    emitted: int = 0
    prime_s: float = 0.0
    phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    synchronize: Callable[[], None] | None = None

    @property
    def attempted(self) -> int:
        """Drafts that were verified."""
        return sum(r.vt - 1 for r in self.rounds)

    @property
    def accepted(self) -> int:
        """Drafts that stayed."""
        return sum(r.accepted for r in self.rounds)

    @property
    def acceptance(self) -> float:
        """Accepted over attempted; depends on the window policy, unlike tokens a round."""
        return self.accepted / self.attempted if self.attempted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens over rounds: the accepted length of the literature, bonus included."""
        return self.emitted / len(self.rounds) if self.rounds else 0.0

    @property
    def verify_rate(self) -> float:
        """Kept rows over verified rows."""
        rows = sum(r.vt for r in self.rounds)
        return sum(r.keep for r in self.rounds) / rows if rows else 0.0

    @property
    def accepted_by_position(self) -> list[int]:
        """How many rounds kept the draft of each position."""
        longest = max((r.accepted for r in self.rounds), default=0)
        return [sum(r.accepted > i for r in self.rounds) for i in range(longest)]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside the `with`, waiting for the device at its end."""
        if self.synchronize is None:
            yield
            return
        begin = time.perf_counter()
        yield
        self.synchronize()
        self.phase_s[name] += time.perf_counter() - begin

    def line(self) -> str:
        """One line for people."""
        phases = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in self.phase_s.items())
        return (
            f"accepted/attempted {self.accepted}/{self.attempted} = {self.acceptance:.3f},"
            f" {len(self.rounds)} rounds, {self.tokens_per_round:.2f} tokens a round"
            + (f"; ms: {phases}" if self.synchronize is not None else "")
        )
