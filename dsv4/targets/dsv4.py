"""The V4 trunk as a target of block drafters: the engine's rounds behind the protocol.

A tap is the mean over a layer's residual streams, which is as wide as one of them. Its caches need
no undoing: a position's rows are written again before anything reads them, so lengths roll back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.checkpoint.mint import MintPlan
from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.decode import uses_graphs
from dsv4.engine.engine import Engine
from dsv4.engine.prefill import prefill
from dsv4.engine.source import WeightSource
from dsv4.engine.state import DecodeState, poisoning
from dsv4.engine.taps import Taps, new_taps, watching
from dsv4.engine.verify import VerifyState, alloc_verify_state, commit_verify, verify_on_device
from dsv4.errors import StateError
from dsv4.runtime.device import Device
from dsv4.spec import F32
from dsv4.speculation.refusals import refuse
from dsv4.targets.layers import Ops, WeightMatrix
from dsv4.targets.protocol import TapSink, VerifyOut


@dataclass(slots=True)
class V4Cache:
    """A sequence of the engine, where its rounds run, and taps by the layers that they read."""

    max_ctx: int
    state: DecodeState
    rounds: VerifyState
    taps: dict[tuple[int, ...], Taps] = field(default_factory=dict)
    tap_sink: TapSink | None = None

    @property
    def pos(self) -> int:
        """Tokens that it has seen."""
        return self.state.pos


@dataclass(slots=True)
class V4Snapshot:
    """A length: all there is to remember."""

    pos: int


@dataclass(frozen=True, slots=True)
class V4Target:
    """A target on the engine's stages. Rows of drafters live on the last one.

    Errors: DrafterRefusal for ranks that share layers, of which none has a whole head.
    """

    engine: Engine
    kind: str = "deepseek_v4"
    rollback_kind: str = "kv"

    def __post_init__(self) -> None:
        """Refuse an engine without a whole head."""
        if self.engine.last.share.world > 1:
            raise refuse(
                "target-parallel",
                f"a drafter for a model on {len(self.engine.stages)} ranks",
                "each holds its part of the vocabulary",
                "load the target with DSV4_PARALLEL=layers",
            )

    @property
    def ops(self) -> Ops:
        """Launches on the stage with the head."""
        return Ops(self.engine.last.device)

    @property
    def hidden(self) -> int:
        """Width of one residual stream, and of a tap."""
        return self.engine.config.dim

    @property
    def vocab(self) -> int:
        """Rows of the head."""
        return self.engine.config.vocab_size

    @property
    def n_layers(self) -> int:
        """Layers of the trunk."""
        return self.engine.config.n_layers

    @property
    def eos(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return (self.engine.config.eos_token_id,)

    @property
    def graphs(self) -> bool:
        """Whether the engine replays its rounds."""
        return uses_graphs(self.engine)

    def new_cache(self, max_ctx: int) -> V4Cache:
        """An empty sequence. Errors: DrafterRefusal beyond the positions it was loaded for."""
        if max_ctx > self.engine.max_seq:
            raise refuse(
                "target-context",
                f"a cache of {max_ctx} positions",
                f"the engine was loaded for {self.engine.max_seq}",
                "ask for fewer tokens, or load it with a larger max_seq",
            )
        rounds = alloc_verify_state(self.engine, VERIFY_ROWS)
        return V4Cache(max_ctx, self.engine.alloc_decode_state(rows=1), rounds)

    def tap_buffer(self, rows: int, width: int) -> Any:
        """An array for taps."""
        return self.ops.zeros(rows, width)

    def embed(self, ids: Any) -> Any:
        """Embedding rows on the last stage. [T,D]."""
        first, last = self.engine.stages[0], self.engine.last
        numbers = np.asarray(self._numbers(ids), np.int32)
        rows = Ops(first.device).embed(first.embed, first.device.to_device(numbers))
        if first.device is last.device:
            return rows
        moved = last.device.empty(rows.shape, F32)
        last.device.receive(moved, rows, first.device)
        return moved

    def head(self, rows: Any) -> Any:
        """Logits of rows that need no further norm. [T,V]."""
        matrix = WeightMatrix("bf16", self.vocab, self.hidden, self.engine.last.head)
        return self.ops.head(matrix, rows)

    def prime(self, ids: Sequence[int], cache: V4Cache) -> Any:
        """Logits of the last prompt position; fills the taps of all of them."""
        engine, state, sink = self.engine, cache.state, cache.tap_sink
        self._room(cache, len(ids))
        state.check(engine, "a prefill")
        if state.pos:
            raise StateError(
                f"a prompt was to be primed at position {state.pos}\n"
                "  a sequence begins with its prompt\n  open a new cache"
            )
        checked = engine.check_ids(ids, 0, "a prefill")
        with poisoning(state):
            if sink is None:
                out = prefill(engine, state, checked, keep_states=False)
            else:
                watch = watching(self._taps(cache, sink), sink.buf[: len(checked)], len(checked))
                out = prefill(engine, state, checked, keep_states=False, watch=watch)
        assert out is not None, "a prompt runs through all layers"
        return engine.last.device.to_device(out.logits)

    def verify(
        self,
        ids: Any,
        start: int,
        cache: V4Cache,
        *,
        want: str = "argmax",
        ckpt: bool = False,
        graph: bool = False,
    ) -> VerifyOut:
        """What the target says after each token, in rounds of as many rows as a step may have.

        Rows are those of single steps whatever the rounds, and the engine replays them wherever
        its arms allow it, whatever `graph` says. Errors: StateError out of place.
        """
        toks = self._numbers(ids)
        if cache.pos != start:
            raise StateError(
                f"verify was asked at position {start}\n  the cache stands at {cache.pos}\n"
                "  commit or restore the last round first"
            )
        self._room(cache, len(toks))
        engine, sink, made = self.engine, cache.tap_sink, []
        taps = None if sink is None else self._taps(cache, sink)
        for first in range(0, len(toks), VERIFY_ROWS):
            some = toks[first : first + VERIFY_ROWS]
            chosen, logits = verify_on_device(
                engine, some, cache.state, cache.rounds, taps, want_logits=want == "logits"
            )
            made.append(chosen if logits is None else logits)
            commit_verify(engine, cache.state, cache.rounds, len(some))
            if sink is not None and taps is not None:
                at = sink.base + first
                sink.buf[at : at + len(some)] = taps.rows[: len(some)]
        rows = made[0] if len(made) == 1 else self.ops.device.xp.concatenate(made)
        kept = () if ckpt else None
        return VerifyOut(None, rows, kept) if want == "logits" else VerifyOut(rows, None, kept)

    def snapshot(self, cache: V4Cache) -> V4Snapshot:
        """The length."""
        return V4Snapshot(cache.pos)

    def refresh_snapshot(self, cache: V4Cache, snap: V4Snapshot) -> None:
        """The length again."""
        snap.pos = cache.pos

    def restore(self, cache: V4Cache, snap: V4Snapshot) -> None:
        """Back to the snapshot, with a new place for rounds where one has failed."""
        if cache.rounds.poisoned:
            cache.rounds = alloc_verify_state(self.engine, VERIFY_ROWS)
        self._back_to(cache, snap.pos)

    def commit_prefix(self, cache: V4Cache, snap: V4Snapshot, ckpt: Any, keep: int) -> None:
        """Only the first `keep` rows stay."""
        if not 0 < keep < cache.pos - snap.pos:
            raise StateError(
                f"a commit of {keep} rows\n  the round has {cache.pos - snap.pos}\n"
                "  keep at least one and fewer than all"
            )
        self._back_to(cache, snap.pos + keep)

    def state_bytes(self, cache: V4Cache) -> dict[str, bytes]:
        """Position, and everything that the layers remember of it."""
        found = {name: array.tobytes() for name, array in self.engine.cache_classes(cache.state)}
        return {"pos": str(cache.pos).encode()} | found

    def synchronize(self) -> None:
        """Wait for everything launched so far, on every stage."""
        for stage in self.engine.stages:
            stage.device.synchronize()

    def _numbers(self, ids: Any) -> list[int]:
        """Tokens on the host: a round's control is written from there."""
        on_device = isinstance(ids, self.engine.last.device.xp.ndarray)
        return [int(t) for t in (self.engine.last.device.to_numpy(ids) if on_device else ids)]

    def _taps(self, cache: V4Cache, sink: TapSink) -> Taps:
        if sink.layer_ids not in cache.taps:
            cache.taps[sink.layer_ids] = new_taps(
                self.engine, sink.layer_ids, VERIFY_ROWS, averaged=True
            )
        return cache.taps[sink.layer_ids]

    def _room(self, cache: V4Cache, rows: int) -> None:
        if cache.pos + rows > cache.max_ctx:
            raise StateError(
                f"a target was asked for {rows} rows at position {cache.pos}\n"
                f"  its cache holds {cache.max_ctx} positions\n  open a larger one"
            )

    def _back_to(self, cache: V4Cache, pos: int) -> None:
        # Rings are longer than a window by so many rows; farther back, rows that are still
        # needed have been written over.
        most = self.engine.arms.prefill_chunk
        if not 0 <= cache.pos - pos <= most:
            raise StateError(
                f"a sequence at position {cache.pos} was to go back to {pos}\n"
                f"  its rings have room for {most} rows that are not kept\n"
                "  verify fewer rows at once, or load with a larger DSV4_PREFILL_CHUNK"
            )
        cache.state.check(self.engine, "a rollback")
        cache.state.pos = pos


def open_v4(
    model: Path | str | MintPlan | WeightSource,
    device: Device,
    *,
    max_seq: int | None = None,
) -> V4Target:
    """The target of a V4 checkpoint or plan, without its own drafter, under the environment's arms.

    Errors: as `Engine.load`.
    """
    return V4Target(Engine.load(model, (device,), max_seq=max_seq, drafter="off"))
