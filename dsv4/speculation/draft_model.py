"""What speculation asks of a drafter, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsv4.drafters.config import DraftConfig
from dsv4.speculation.sampling import Counters, Proposal, Sampler, SpecSampling


@dataclass(frozen=True, slots=True)
class GreedyChain:
    """A greedy proposal: tokens [N+1] with the anchor first, an array of the backend; stash [N,R].

    logits: the rows with the token bias in them.
    """

    tokens: Any
    logits: Any
    stash: Any


class DraftModel(Protocol):
    """A drafter. Its caches have `length`, the committed rows, and `cap`."""

    @property
    def config(self) -> DraftConfig:
        """What it is."""

    @property
    def has_confidence(self) -> bool:
        """Whether it scores its own drafts."""

    @property
    def wants_stash(self) -> bool:
        """Whether its scores need the token rows of the chain."""

    def new_kv(self, cap: int) -> Any:
        """An empty cache for that many context rows and a block behind them."""

    def ctx_features(self, taps: Any) -> Any:
        """Features of context rows from taps, one by one. [T,nt*D] -> [T,D]."""

    def ingest_ctx(self, kv: Any, features: Any, positions: Sequence[int]) -> None:
        """Append context rows. Errors: DrafterRefusal when they do not fit or leave a gap."""

    def forward_round(self, kv: Any, noise: Any, positions: Sequence[int]) -> Any:
        """The block after its final norm, behind the context. [B,D]."""

    def noise(self, rows: Any, scale: float) -> Any:
        """Embedding rows of a block, times the configuration's scale and the given one."""

    def scaled(self, logits: Any) -> Any:
        """Logits after the multiplier and the soft cap of the configuration."""

    def chain_greedy(self, logits: Any, rows: Any, anchor: int, *, stash: bool) -> GreedyChain:
        """Each slot's best token, given the one before it."""

    def propose_greedy(self, logits: Any, rows: Any, anchor: int) -> list[int]:
        """The greedy walk through candidates. Errors: DrafterRefusal unless it is DFlash2."""

    def propose_sampled(
        self,
        logits: Any,
        rows: Any,
        anchor: int,
        sampling: SpecSampling,
        counters: Counters,
        sampler: Sampler,
    ) -> tuple[Proposal, Any]:
        """A drawn proposal with what it was drawn from, and the stash."""

    def raw_scores(self, rows: Any, stash: Any) -> np.ndarray:
        """The raw confidence of every slot, on the host. [N]."""

    def to_host(self, array: Any) -> np.ndarray:
        """A copy on the host."""
