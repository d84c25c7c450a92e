"""One snapshot of a target's recurrent states, made once and refreshed every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4.targets.protocol import SpecTarget


@dataclass(slots=True)
class SnapBatch:
    """A snapshot whose arrays live as long as the run.

    States of a kind are one stacked array, so a refresh is one copy a kind.
    """

    target: SpecTarget
    snap: Any

    @classmethod
    def create(cls, target: SpecTarget, cache: Any) -> SnapBatch | None:
        """A fresh snapshot to reuse, or None where lengths are all there is to remember."""
        if target.rollback_kind != "hybrid":
            return None
        return cls(target, target.snapshot(cache))

    def refresh(self, cache: Any) -> Any:
        """The snapshot, taken again."""
        self.target.refresh_snapshot(cache, self.snap)
        return self.snap
