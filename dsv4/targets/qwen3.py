"""Qwen targets on a device: full-attention layers, MLPs, and the interface of speculation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.drafters.rope import neox_table
from dsv4.errors import StateError
from dsv4.kernels.scale import scale_gate
from dsv4.kernels.sdpa import sdpa_full
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

PRIME_ROWS = 256
Probe = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projections and head norms; in hybrids wq holds all queries, then all output gates."""

    wq: WeightMatrix
    wk: WeightMatrix
    wv: WeightMatrix
    wo: WeightMatrix
    q_norm: Any
    k_norm: Any


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """The three matrices of an MLP."""

    gate: WeightMatrix
    up: WeightMatrix
    down: WeightMatrix


@dataclass(frozen=True, slots=True)
class TargetLayer:
    """One decoder layer."""

    input_norm: Any
    post_norm: Any
    mixer: AttentionWeights | LinearWeights
    mlp: DenseWeights | RoutedWeights


@dataclass(slots=True)
class TargetCache:
    """Keys and values of full layers by layer; states of linear layers stacked, in two copies.

    A pass reads the states of `side` and writes the other, which then becomes `side`.
    dead: why the cache cannot go on.
    """

    max_ctx: int
    pos: int
    k: Mapping[int, Any]
    v: Mapping[int, Any]
    conv: tuple[Any, Any] | None
    recurrent: tuple[Any, Any] | None
    table: Any
    side: int = 0
    tap_sink: TapSink | None = None
    dead: str = ""


@dataclass(slots=True)
class TargetSnapshot:
    """The length, and copies of the stacked states."""

    pos: int
    conv: Any
    recurrent: Any


def ignore(name: str, value: Any) -> None:
    """A probe that listens to nothing."""


@dataclass(frozen=True, slots=True)
class QwenTarget:
    """A target: weights on a device. See `dsv4.targets.protocol` for what its methods promise."""

    config: TargetConfig
    ops: Ops
    table: Any
    head_matrix: WeightMatrix
    final_norm: Any
    layers: tuple[TargetLayer, ...]
    linear_index: Mapping[int, int] = field(default_factory=dict)

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
        on_device = isinstance(ids, self.ops.device.xp.ndarray)
        return self.ops.embed(self.table, ids if on_device else self.ops.ints(ids))

    def head(self, rows: Any) -> Any:
        """Logits of rows that need no further norm. [T,V]."""
        return self.ops.head(self.head_matrix, rows)

    def forward(self, ids: Any, cache: TargetCache, probe: Probe = ignore) -> tuple[Any, Any]:
        """Normed rows of new tokens, and what a checkpoint keeps of linear layers.

        Errors: StateError when the cache is dead or full.
        """
        rows, start = len(ids), cache.pos
        if cache.dead or start + rows > cache.max_ctx:
            raise StateError(
                f"a target was asked for {rows} rows at position {start}\n"
                f"  {cache.dead or f'its cache holds {cache.max_ctx} positions'}\n"
                "  open a larger cache, or a new one"
            )
        cache.dead = "an earlier pass raised"
        ops, eps = self.ops, self.config.eps
        x = self.embed(ids)
        probe("hidden.embed", x)
        positions = ops.ints(np.arange(start, start + rows))
        scans: dict[int, ScanInputs] = {}
        for i, layer in enumerate(self.layers):
            n = ops.norm(x, layer.input_norm, eps)
            if isinstance(layer.mixer, AttentionWeights):
                ops.add(self._attend(i, layer.mixer, n, positions, cache), x)
            else:
                out, scans[i] = self._scan(i, layer.mixer, n, cache)
                ops.add(out, x)
            n = ops.norm(x, layer.post_norm, eps)
            ops.add(self._mlp(i, layer.mlp, n, probe), x)
            probe(f"hidden.layer{i}", x)
            _tap(cache.tap_sink, i, x)
        final = ops.norm(x, self.final_norm, eps)
        probe("hidden.final_norm", final)
        if scans:
            cache.side = 1 - cache.side
        cache.pos, cache.dead = start + rows, ""
        return final, scans

    def _attend(
        self, i: int, w: AttentionWeights, n: Any, positions: Any, cache: TargetCache
    ) -> Any:
        c, ops, rows = self.config, self.ops, len(n)
        start, end, lanes = cache.pos, cache.pos + len(n), c.heads * c.width
        both = ops.linear(w.wq, n)
        # The norm wants rows without gaps; the gate is read where it lies.
        q = ops.device.xp.ascontiguousarray(both[:, :lanes]).reshape(rows, c.heads, c.width)
        k = ops.linear(w.wk, n).reshape(rows, c.kv_heads, c.width)
        q = ops.rotate(ops.norm(q, w.q_norm, c.eps), cache.table, positions)
        k = ops.rotate(ops.norm(k, w.k_norm, c.eps), cache.table, positions)
        cache.k[i][start:end] = k
        cache.v[i][start:end] = ops.linear(w.wv, n).reshape(rows, c.kv_heads, c.width)
        out = ops.empty(rows, c.heads, c.width)
        ops.run(
            sdpa_full,
            q,
            cache.k[i][:end],
            cache.v[i][:end],
            positions + 1,
            out=out,
            scale=c.width**-0.5,
        )
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
        self, ids: Any, start: int, cache: TargetCache, *, want: str = "argmax", ckpt: bool = False
    ) -> VerifyOut:
        """What the target says after each token. Errors: StateError out of place."""
        if cache.pos != start:
            raise StateError(
                f"verify was asked at position {start}\n  the cache stands at {cache.pos}\n"
                "  commit or restore the last round first"
            )
        final, scans = self.forward(ids, cache)
        logits = self.head(final)
        kept = scans if ckpt else None
        if want == "logits":
            return VerifyOut(None, logits, kept)
        return VerifyOut(self.ops.argmax(logits), None, kept)

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


def _tap(sink: TapSink | None, layer: int, x: Any) -> None:
    if sink is not None and layer in sink.layer_ids:
        at = sink.layer_ids.index(layer) * sink.hidden
        sink.buf[sink.base : sink.base + len(x), at : at + sink.hidden] = x
