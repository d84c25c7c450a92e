"""A target and drafters that are small tables: the loops alone decide what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.drafters.config import DraftConfig, draft_config
from dsv4.drafters.selector import Codebooks, walk_sampled
from dsv4.speculation.draft_model import GreedyChain
from dsv4.speculation.philox import host_u01
from dsv4.speculation.sampling import (
    Counters,
    Proposal,
    RowsProposal,
    Sampler,
    SelectorProposal,
    SpecSampling,
)
from dsv4.targets.protocol import TapSink, VerifyOut
from tests.drafters.small import content

V, BLOCK = 5, 3
_RNG = np.random.default_rng(11)
TARGET = 1.2 * _RNG.standard_normal((2, V, V)).astype(np.float32)
"""Logits after a token, by whether the token before it was odd."""
DRAFT = (TARGET[0] + 0.9 * _RNG.standard_normal((V, V))).astype(np.float32)
"""What drafters say after a token; they do not see the one before it."""
SURE = np.array([3.0, -2.0, 0.6, -0.3, 2.0], np.float32)
"""Raw confidence in the slot behind a token."""
_BOOKS = Codebooks(
    *((_RNG.standard_normal((V, 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
      for _ in range(2))
)  # fmt: skip


@dataclass
class ScriptedCache:
    """The tokens seen so far."""

    max_ctx: int
    seen: list[int] = field(default_factory=list)
    tap_sink: TapSink | None = None

    @property
    def pos(self) -> int:
        return len(self.seen)


@dataclass
class ScriptedTarget:
    """Looks its logits up by the last two tokens of its cache."""

    hidden: int = 8
    vocab: int = V
    n_layers: int = 4
    rollback_kind: str = "kv"
    graphs: bool = False

    def new_cache(self, max_ctx: int) -> ScriptedCache:
        return ScriptedCache(max_ctx)

    def tap_buffer(self, rows: int, width: int) -> np.ndarray:
        return np.zeros((rows, width), np.float32)

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        return np.asarray(ids, np.float32)[:, None]

    def head(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros((len(rows), V), np.float32)

    def prime(self, ids: Sequence[int], cache: ScriptedCache) -> np.ndarray:
        cache.seen += ids
        return self._row(cache.seen)

    def verify(
        self,
        ids: Sequence[int],
        start: int,
        cache: ScriptedCache,
        *,
        want: str = "argmax",
        ckpt: bool = False,
        graph: bool = False,
    ) -> VerifyOut:
        assert cache.pos == start
        rows = []
        for token in ids:
            cache.seen.append(int(token))
            rows.append(self._row(cache.seen))
        logits = np.stack(rows)
        if want == "argmax":
            return VerifyOut(logits.argmax(axis=1), None, ())
        return VerifyOut(None, logits, ())

    def snapshot(self, cache: ScriptedCache) -> int:
        return cache.pos

    def refresh_snapshot(self, cache: ScriptedCache, snap: int) -> None: ...

    def restore(self, cache: ScriptedCache, snap: int) -> None:
        del cache.seen[snap:]

    def commit_prefix(self, cache: ScriptedCache, snap: int, ckpt: Any, keep: int) -> None:
        del cache.seen[snap + keep :]

    def state_bytes(self, cache: ScriptedCache) -> dict[str, bytes]:
        return {"seen": bytes(cache.seen)}

    def synchronize(self) -> None: ...

    def _row(self, seen: Sequence[int]) -> np.ndarray:
        before = seen[-2] % 2 if len(seen) > 1 else 0
        return np.asarray(TARGET[before, seen[-1]])


@dataclass
class ScriptedKV:
    """How many rows were ingested."""

    length: int = 0


@dataclass
class ScriptedDrafter:
    """kind "chain" draws from DRAFT after each token, "rows" from DRAFT after the anchor alone,
    "selector" among three candidates. sure: scores its slots, by the token before each, or, when
    it peeks, by the drafted token itself, which no lossless rule may look at.
    """

    kind: str
    sure: bool = False
    peeks: bool = False

    @property
    def config(self) -> DraftConfig:
        return _CONFIGS[self.kind == "selector"]

    @property
    def has_confidence(self) -> bool:
        return self.sure

    @property
    def wants_stash(self) -> bool:
        return self.sure

    def new_kv(self, cap: int) -> ScriptedKV:
        return ScriptedKV()

    def ctx_features(self, taps: np.ndarray) -> np.ndarray:
        return taps

    def ingest_ctx(self, kv: ScriptedKV, features: np.ndarray, positions: Sequence[int]) -> None:
        assert positions[0] == kv.length
        kv.length += len(features)

    def forward_round(self, kv: ScriptedKV, noise: np.ndarray, positions: Any) -> np.ndarray:
        return noise

    def noise(self, rows: np.ndarray, scale: float) -> np.ndarray:
        return rows

    def scaled(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def chain_greedy(self, logits: Any, rows: Any, anchor: int, *, stash: bool) -> GreedyChain:
        tokens = [anchor]
        for _ in range(len(logits)):
            tokens.append(int(DRAFT[tokens[-1]].argmax()))
        return GreedyChain(np.array(tokens), logits, np.array(tokens[:-1]) if stash else None)

    def propose_greedy(self, logits: Any, rows: Any, anchor: int) -> list[int]:
        return [int(t) for t in self.chain_greedy(logits, rows, anchor, stash=False).tokens[1:]]

    def propose_sampled(
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        anchor: int,
        sampling: SpecSampling,
        counters: Counters,
        sampler: Sampler,
    ) -> tuple[Proposal, Any]:
        slots = len(logits)
        if self.kind == "selector":
            first = counters.uniforms(slots)
            u = [host_u01(sampling.seed, first + i) for i in range(slots)]
            ids, unary = np.array([[0, 2, 4], [1, 3, 4]]), np.zeros((2, 3), np.float32)
            path = walk_sampled(_BOOKS, unary, ids, np.ones((2, 2)), anchor, sampling.temp, u)
            tokens = tuple(path.tokens.tolist())
            return SelectorProposal(tokens, path.ids, path.q_rows, path.q_chosen), None
        first, chain, stats = counters.events(slots), [anchor], []
        for i in range(slots):
            row = DRAFT[chain[-1] if self.kind == "chain" else anchor][None]
            logits[i] = row
            stats.append(sampler.stats(row, sampling))
            chain.append(sampler.gumbel(row, stats[-1], sampling, first + i))
        stash = np.array(chain[1:] if self.peeks else chain[:-1])
        return RowsProposal(tuple(chain[1:]), logits, np.concatenate(stats)), stash

    def raw_scores(self, rows: np.ndarray, stash: Any) -> np.ndarray:
        return np.asarray(SURE[stash])

    def to_host(self, array: Any) -> np.ndarray:
        return np.asarray(array)


_SIZES: dict[str, Any] = dict(hidden_size=8, vocab_size=V, own_mask_token_id=0)
_CONFIGS = (
    draft_config(content("dspark", **_SIZES, block_size=BLOCK - 1)),
    draft_config(content("dflash2", **_SIZES, own_block_size=BLOCK, own_conv_group_size=4)),
)
