"""Qwen targets on a device: full-attention layers, MLPs, and the interface of speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.drafters.rope import neox_table
from dsv4.errors import StateError
from dsv4.kernels.scale import scale_gate
from dsv4.kernels.sdpa import sdpa_full
from dsv4.spec import I32
from dsv4.targets.cache import TargetCache, TargetSnapshot
from dsv4.targets.config import TargetConfig
from dsv4.targets.layers import Ops, WeightMatrix
from dsv4.targets.protocol import TapSink, VerifyOut
from dsv4.targets.qwen_hybrid import (
    LinearWeights,
    RoutedWeights,
    ScanInputs,
    linear_layer,
    rescan,
    routed_mlp,
)
from dsv4.targets.replayed import Places, replay_round, rows_of
from dsv4.targets.weights import AttentionWeights, DenseWeights, TargetLayer

PRIME_ROWS = 256
Probe = Callable[[str, Any], None]


def ignore(name: str, value: Any) -> None:
    """A probe that listens to nothing."""


@dataclass(frozen=True, slots=True)
class QwenTarget:
    """A target: weights on a device. See `dsv4.targets.protocol` for what its methods promise.

    host_table: the embedding's bf16 bits, where rows are looked up on the host instead.
    """

    config: TargetConfig
    ops: Ops
    table: Any
    head_matrix: WeightMatrix
    final_norm: Any
    layers: tuple[TargetLayer, ...]
    linear_index: Mapping[int, int] = field(default_factory=dict)
    host_table: np.ndarray | None = None

    @property
    def kind(self) -> str:
        """What its configuration calls it."""
        return self.config.kind

    @property
    def eos(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self.config.eos

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden

    @property
    def vocab(self) -> int:
        """Rows of the head."""
        return self.config.vocab

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def graphs(self) -> bool:
        """Whether rounds can be replayed: they are launches alone, unless the host routes."""
        return not self.config.routed

    @property
    def rollback_kind(self) -> str:
        """Whether cutting lengths is enough to roll back."""
        return "kv" if self.config.linear is None else "hybrid"

    def new_cache(self, max_ctx: int) -> TargetCache:
        """An empty cache for that many positions."""
        c, ops = self.config, self.ops
        full = [i for i, kind in enumerate(c.kinds) if kind == "full"]
        shape = (max_ctx, c.kv_heads, c.width)
        k, v = ({i: ops.zeros(*shape) for i in full} for _ in range(2))
        conv = recurrent = None
        if c.linear is not None:
            s, count = c.linear, len(self.linear_index)
            rings = (count, s.channels, s.taps - 1)
            states = (count, s.value_heads, s.value_width, s.key_width)
            conv = (ops.zeros(*rings), ops.zeros(*rings))
            recurrent = (ops.zeros(*states), ops.zeros(*states))
        table = ops.vector(neox_table(max_ctx, c.rotary, c.theta))
        return TargetCache(max_ctx, 0, k, v, conv, recurrent, table)

    def tap_buffer(self, rows: int, width: int) -> Any:
        """An array for taps."""
        return self.ops.zeros(rows, width)

    def embed(self, ids: Any) -> Any:
        """Embedding rows. [T,D]."""
        if self.host_table is not None:
            return self.ops.vector(rows_of(self.host_table, self.ops.device, ids))
        on_device = isinstance(ids, self.ops.device.xp.ndarray)
        return self.ops.embed(self.table, ids if on_device else self.ops.ints(ids))

    def head(self, rows: Any) -> Any:
        """Logits of rows that need no further norm. [T,V]."""
        return self.ops.head(self.head_matrix, rows)

    def forward(self, ids: Any, cache: TargetCache, probe: Probe = ignore) -> tuple[Any, Any]:
        """Normed rows of new tokens, and what a checkpoint keeps of linear layers.

        Errors: StateError when the cache is dead or full.
        """
        with self._moving(cache, len(ids)) as start:
            places = self.places(len(ids))
            places.move(self.ops.device, ids, start, self.host_table)
            return self.run_rows(places, cache, cache.tap_sink, probe)

    def places(self, rows: int) -> Places:
        """Where a pass of that many rows reads its tokens and positions."""
        ids, positions, ends = (self.ops.device.empty((rows,), I32) for _ in range(3))
        embedded = None if self.host_table is None else self.ops.empty(rows, self.hidden)
        return Places(ids, positions, ends, embedded)

    def run_rows(
        self, places: Places, cache: TargetCache, sink: TapSink | None, probe: Probe = ignore
    ) -> tuple[Any, dict[int, ScanInputs]]:
        """A pass as launches alone, on tokens and positions that lie on the device."""
        ops, eps = self.ops, self.config.eps
        x = places.embedded
        if x is None:
            x = ops.embed(self.table, places.ids)
        probe("hidden.embed", x)
        scans: dict[int, ScanInputs] = {}
        for i, layer in enumerate(self.layers):
            n = ops.norm(x, layer.input_norm, eps)
            if isinstance(layer.mixer, AttentionWeights):
                ops.add(self._attend(i, layer.mixer, n, places, cache), x)
            else:
                out, scans[i] = self._scan(i, layer.mixer, n, cache)
                ops.add(out, x)
            n = ops.norm(x, layer.post_norm, eps)
            ops.add(self._mlp(i, layer.mlp, n, probe), x)
            probe(f"hidden.layer{i}", x)
            if sink is not None and i in sink.layer_ids:
                rows = sink.buf[sink.base : sink.base + len(x)]
                ops.place(x, rows, sink.layer_ids.index(i) * sink.hidden)
        final = ops.norm(x, self.final_norm, eps)
        probe("hidden.final_norm", final)
        return final, scans

    @contextmanager
    def _moving(self, cache: TargetCache, rows: int) -> Iterator[int]:
        """The first position of new rows; the cache moves on by them unless something raises."""
        start = cache.pos
        if cache.dead or start + rows > cache.max_ctx:
            raise StateError(
                f"a target was asked for {rows} rows at position {start}\n"
                f"  {cache.dead or f'its cache holds {cache.max_ctx} positions'}\n"
                "  open a larger cache, or a new one"
            )
        cache.dead = "an earlier pass raised"
        yield start
        if self.config.linear is not None:
            cache.side = 1 - cache.side
        cache.pos, cache.dead = start + rows, ""

    def _attend(
        self, i: int, w: AttentionWeights, n: Any, places: Places, cache: TargetCache
    ) -> Any:
        c, ops, rows = self.config, self.ops, len(n)
        lanes = c.heads * c.width
        both = ops.linear(w.wq, n)
        # The norm wants rows without gaps; the gate is read where it lies.
        q = ops.columns(both, 0, lanes).reshape(rows, c.heads, c.width)
        k = ops.linear(w.wk, n).reshape(rows, c.kv_heads, c.width)
        q = ops.rotate(ops.norm(q, w.q_norm, c.eps), cache.table, places.positions)
        k = ops.rotate(ops.norm(k, w.k_norm, c.eps), cache.table, places.positions)
        ops.put(k, cache.k[i], places.positions)
        ops.put(ops.linear(w.wv, n), cache.v[i], places.positions)
        out = ops.empty(rows, c.heads, c.width)
        # Keys behind a row's own end are not read, so the whole cache may be passed.
        ops.run(sdpa_full, q, cache.k[i], cache.v[i], places.ends, out=out, scale=c.width**-0.5)
        out = out.reshape(rows, lanes)
        if c.centred:
            gated = ops.empty(rows, lanes)
            ops.run(scale_gate, out, both[:, lanes:], out=gated)
            out = gated
        return ops.linear(w.wo, out)

    def _scan(self, i: int, w: LinearWeights, n: Any, cache: TargetCache) -> tuple[Any, ScanInputs]:
        assert cache.conv is not None and cache.recurrent is not None
        assert self.config.linear is not None
        at, old, new = self.linear_index[i], cache.side, 1 - cache.side
        return linear_layer(
            self.ops,
            self.config.linear,
            self.config.eps,
            w,
            n,
            (cache.conv[old][at], cache.recurrent[old][at]),
            (cache.conv[new][at], cache.recurrent[new][at]),
        )

    def _mlp(self, i: int, w: DenseWeights | RoutedWeights, n: Any, probe: Probe) -> Any:
        if isinstance(w, DenseWeights):
            return self.ops.mlp(w.gate, w.up, w.down, n)
        out, routing = routed_mlp(self.ops, self.config, w, n)
        for name, value in routing.items():
            probe(f"router.layer{i}.{name}", value)
        return out

    def prime(self, ids: Sequence[int], cache: TargetCache) -> Any:
        """Logits of the last prompt position; in chunks, which fill all taps."""
        sink, final = cache.tap_sink, None
        for first in range(0, len(ids), PRIME_ROWS):
            if sink is not None:
                sink.base = first
            final, _ = self.forward(ids[first : first + PRIME_ROWS], cache)
        assert final is not None
        return self.head(final[-1:])[0]

    def verify(
        self,
        ids: Any,
        start: int,
        cache: TargetCache,
        *,
        want: str = "argmax",
        ckpt: bool = False,
        graph: bool = False,
    ) -> VerifyOut:
        """What the target says after each token. Errors: StateError out of place."""
        if cache.pos != start:
            raise StateError(
                f"verify was asked at position {start}\n  the cache stands at {cache.pos}\n"
                "  commit or restore the last round first"
            )
        if graph:
            with self._moving(cache, len(ids)):
                made, scans = replay_round(self, cache, ids, want)
        else:
            final, scans = self.forward(ids, cache)
            made = self.said(final, want)
        kept = scans if ckpt else None
        return VerifyOut(None, made, kept) if want == "logits" else VerifyOut(made, None, kept)

    def said(self, final: Any, want: str) -> Any:
        """The logits of normed rows, or their largest tokens."""
        logits = self.head(final)
        return logits if want == "logits" else self.ops.argmax(logits)

    def snapshot(self, cache: TargetCache) -> TargetSnapshot:
        """Copies of everything a rollback needs."""
        if cache.conv is None or cache.recurrent is None:
            return TargetSnapshot(cache.pos, None, None)
        return TargetSnapshot(
            cache.pos, cache.conv[cache.side].copy(), cache.recurrent[cache.side].copy()
        )

    def refresh_snapshot(self, cache: TargetCache, snap: TargetSnapshot) -> None:
        """The snapshot's arrays filled again: one copy for each kind of state."""
        snap.pos = cache.pos
        if cache.conv is not None and cache.recurrent is not None:
            snap.conv[...] = cache.conv[cache.side]
            snap.recurrent[...] = cache.recurrent[cache.side]

    def restore(self, cache: TargetCache, snap: TargetSnapshot) -> None:
        """Back to the snapshot, which stays usable."""
        cache.pos, cache.dead = snap.pos, ""
        if cache.conv is not None and cache.recurrent is not None:
            cache.conv[cache.side][...] = snap.conv
            cache.recurrent[cache.side][...] = snap.recurrent

    def commit_prefix(self, cache: TargetCache, snap: TargetSnapshot, ckpt: Any, keep: int) -> None:
        """Only the first `keep` rows stay: their scans are redone from the snapshot."""
        if not 0 < keep < cache.pos - snap.pos:
            raise StateError(
                f"a commit of {keep} rows\n  the round has {cache.pos - snap.pos}\n"
                "  keep at least one and fewer than all"
            )
        if cache.conv is not None and cache.recurrent is not None:
            for i, scan in ckpt.items():
                at = self.linear_index[i]
                states = (snap.conv[at], snap.recurrent[at])
                after = (cache.conv[cache.side][at], cache.recurrent[cache.side][at])
                rescan(self.ops, scan, keep, states, after)
        cache.pos = snap.pos + keep

    def state_bytes(self, cache: TargetCache) -> dict[str, bytes]:
        """Position and recurrent states, for comparing two ways to the same place."""
        found = {"pos": str(cache.pos).encode()}
        if cache.conv is not None and cache.recurrent is not None:
            to_host = self.ops.device.to_numpy
            found["conv"] = to_host(cache.conv[cache.side]).tobytes()
            found["recurrent"] = to_host(cache.recurrent[cache.side]).tobytes()
        return found

    def synchronize(self) -> None:
        """Wait for everything launched so far."""
        self.ops.device.synchronize()
