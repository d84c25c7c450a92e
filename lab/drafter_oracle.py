"""The float64 target and drafter as a pair that speculation can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.drafters.config import DraftConfig, draft_config
from dsv4.drafters.selector import Codebooks, walk_sampled
from dsv4.speculation.draft_model import GreedyChain
from dsv4.speculation.philox import host_u01
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import (
    Counters,
    Proposal,
    RowsProposal,
    Sampler,
    SelectorProposal,
    SpecSampling,
)
from lab.drafter_recorded import Part
from oracle.dflash import Backbone, DraftKV, build_backbone
from oracle.draft_config import DraftConfig as OracleConfig
from oracle.draft_config import read_draft_config
from oracle.draft_heads import confidence, markov_chain, markov_step, scaled_logits, select
from oracle.qwen3 import Tensors
from oracle.qwen_target import QwenTarget, build_target


@dataclass(frozen=True, slots=True)
class OracleDrafter:
    """A `DraftModel` in float64. markov: whether the token bias is armed."""

    config: DraftConfig
    shape: OracleConfig
    w: Tensors
    rule: str = "seed"
    markov: bool = True

    @property
    def has_confidence(self) -> bool:
        """Whether it scores its own drafts."""
        return "confidence_head.proj.weight" in self.w

    @property
    def wants_stash(self) -> bool:
        """Whether its scores need the token rows of the chain."""
        if not self.has_confidence:
            return False
        return bool(self.w["confidence_head.proj.weight"].shape[1] > self.config.hidden)

    def new_kv(self, cap: int) -> Any:
        """An empty cache with its backbone, whose table covers it."""
        backbone = build_backbone(self.shape, self.w, cap, self.rule)
        return OracleKV(backbone, backbone.new_kv(cap))

    def ctx_features(self, taps: Any) -> Any:
        """Features of context rows."""
        return build_backbone(self.shape, self.w, 0, self.rule).context(taps)

    def ingest_ctx(self, kv: Any, features: Any, positions: Sequence[int]) -> None:
        """Append context rows."""
        kv.backbone.ingest(kv.kv, features)

    def forward_round(self, kv: Any, noise: Any, positions: Sequence[int]) -> Any:
        """The block after its final norm."""
        return kv.backbone.block(kv.kv, noise)

    def noise(self, rows: Any, scale: float) -> Any:
        """Embedding rows of a block, scaled."""
        return rows * (self.config.embedding_scale * scale)

    def scaled(self, logits: Any) -> Any:
        """Logits after multiplier and soft cap."""
        return scaled_logits(self.shape, logits)

    def chain_greedy(self, logits: Any, rows: Any, anchor: int, *, stash: bool) -> GreedyChain:
        """Each slot's best token, given the one before it."""
        chain = markov_chain(self.shape, self.w, logits, rows, anchor)
        if self.markov:
            return GreedyChain(np.append(anchor, chain.tokens), chain.logits, chain.previous)
        return GreedyChain(np.append(anchor, np.argmax(logits, axis=1)), logits, None)

    def propose_greedy(self, logits: Any, rows: Any, anchor: int) -> list[int]:
        """The greedy walk through candidates."""
        return [int(t) for t in select(self.shape, self.w, logits, rows, anchor).tokens]

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
        if self.config.is_dflash2:
            walk = select(self.shape, self.w, logits, rows, anchor)
            first = counters.uniforms(len(rows))
            u = [host_u01(sampling.seed, first + j) for j in range(len(rows))]
            path = walk_sampled(
                self._books(), walk.values, walk.ids, walk.hidden, anchor, sampling.temp, u
            )
            tokens = tuple(int(t) for t in path.tokens)
            return SelectorProposal(tokens, path.ids, path.q_rows, path.q_chosen), None
        return self._chain_sampled(logits, rows, anchor, sampling, counters, sampler)

    def _chain_sampled(
        self,
        logits: Any,
        rows: Any,
        anchor: int,
        sampling: SpecSampling,
        counters: Counters,
        sampler: Sampler,
    ) -> tuple[Proposal, Any]:
        biased, stats, tokens, stash = logits.copy(), [], [anchor], []
        state = None
        first = counters.events(len(rows))
        for slot, h in enumerate(rows):
            if self.markov:
                bias, row, state = markov_step(self.shape, self.w, tokens[-1], h, state)
                biased[slot] += bias
                stash.append(row)
            stats.append(sampler.stats(biased[slot : slot + 1], sampling)[0])
            at = slice(slot, slot + 1)
            event = (first + slot) & 0xFFFFFFFF
            tokens.append(sampler.gumbel(biased[at], stats[-1][None], sampling, event))
        proposal = RowsProposal(tuple(tokens[1:]), biased, np.stack(stats))
        return proposal, np.array(stash) if self.wants_stash else None

    def raw_scores(self, rows: Any, stash: Any) -> np.ndarray:
        """The raw confidence of every slot."""
        return confidence(self.w, rows, stash)

    def to_host(self, array: Any) -> np.ndarray:
        """The array itself."""
        return np.asarray(array)

    def _books(self) -> Codebooks:
        names = [f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor")]
        return Codebooks(*(self.w.stored[n][1] for n in names))


@dataclass(slots=True)
class OracleKV:
    """A cache of the float64 backbone."""

    backbone: Backbone
    kv: DraftKV

    @property
    def length(self) -> int:
        """Committed rows."""
        return self.kv.length

    @property
    def cap(self) -> int:
        """Most committed rows."""
        return self.kv.cap


def oracle_drafter(part: Part, rule: str = "seed") -> OracleDrafter:
    """The float64 drafter of a checkpoint. Errors: DrafterRefusal."""
    config = draft_config(part.content)
    return OracleDrafter(config, read_draft_config(part.content), Tensors(part.tensors), rule)


def oracle_target(part: Part) -> QwenTarget:
    """The float64 target of a checkpoint. Errors: Refusal for a model it does not know."""
    try:
        return build_target(part.content, part.tensors)
    except ValueError as error:
        raise refuse(
            "architecture", f"the target {Path(part.folder).name}", str(error), "use a Qwen target"
        ) from error
