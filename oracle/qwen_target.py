"""A Qwen target in float64 behind the interface that speculation asks of a target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oracle.formats import Floats
from oracle.qwen3 import (
    Routing,
    Tensors,
    attention_inputs,
    attention_output,
    dense_mlp,
    gain,
    routed_mlp,
)
from oracle.qwen_config import QwenConfig, read_qwen_config
from oracle.qwen_hybrid import Scan, linear_layer
from oracle.rms_norm import rms_norm
from oracle.rope_neox import neox_table


@dataclass(slots=True)
class TapSink:
    """Where a forward pass leaves the residual rows of tapped layers, side by side."""

    layer_ids: tuple[int, ...]
    buf: np.ndarray
    hidden: int
    t: int = 0
    base: int = 0


@dataclass(slots=True)
class Cache:
    """Keys and values by full layer, convolution and recurrent state by linear layer."""

    max_ctx: int
    pos: int
    k: dict[int, np.ndarray]
    v: dict[int, np.ndarray]
    conv: dict[int, np.ndarray]
    recurrent: dict[int, np.ndarray]
    table: np.ndarray
    tap_sink: TapSink | None = None


@dataclass(slots=True)
class Snapshot:
    """What a rollback needs: the length, and copies of the states that cannot be cut."""

    pos: int
    conv: Mapping[int, np.ndarray]
    recurrent: Mapping[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class VerifyOut:
    """Exactly one of argmax and logits, and the checkpoint if it was asked for."""

    argmax: np.ndarray | None
    logits: np.ndarray | None
    ckpt: Mapping[int, Scan] | None


@dataclass(slots=True)
class Pass:
    """What one forward pass went through: residual rows after each layer, and routers."""

    embed: Floats
    layers: list[Floats] = field(default_factory=list)
    final: Floats = field(default_factory=lambda: np.empty(0))
    routing: dict[int, Routing] = field(default_factory=dict)
    scans: dict[int, Scan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QwenTarget:
    """Weights and configuration of a target."""

    config: QwenConfig
    w: Tensors

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
        return len(self.config.kinds)

    @property
    def rollback_kind(self) -> str:
        """Whether cutting lengths is enough to roll back."""
        return "kv" if self.config.linear is None else "hybrid"

    def new_cache(self, max_ctx: int) -> Cache:
        """An empty cache for that many positions."""
        c = self.config
        full = [i for i, kind in enumerate(c.kinds) if kind == "full"]
        linear = [i for i, kind in enumerate(c.kinds) if kind == "linear"]
        shape = (max_ctx, c.kv_heads, c.width)
        conv: dict[int, np.ndarray] = {}
        state: dict[int, np.ndarray] = {}
        for i in linear:
            assert c.linear is not None
            s = c.linear
            channels = 2 * s.key_heads * s.key_width + s.value_heads * s.value_width
            conv[i] = np.zeros((channels, s.taps - 1))
            state[i] = np.zeros((s.value_heads, s.key_width, s.value_width))
        table = neox_table(max_ctx, c.rotary, c.theta)
        k, v = ({i: np.zeros(shape) for i in full} for _ in range(2))
        return Cache(max_ctx, 0, k, v, conv, state, table)

    def embed(self, ids: Sequence[int] | np.ndarray) -> Floats:
        """Embedding rows. [T,D]."""
        return self.w[f"{self.config.prefix}embed_tokens.weight"][np.asarray(ids, np.int64)]

    def head(self, rows: Floats) -> Floats:
        """Logits of rows that are already normed. [T,V]."""
        tied = f"{self.config.prefix}embed_tokens.weight"
        return np.asarray(rows @ self.w[tied if self.config.tied else "lm_head.weight"].T)

    def forward(self, ids: Sequence[int] | np.ndarray, cache: Cache) -> Pass:
        """One pass over new tokens at positions cache.pos..; advances the cache."""
        c, start = self.config, cache.pos
        x = self.embed(ids)
        done = Pass(x)
        positions = np.arange(start, start + len(x))
        for i, kind in enumerate(c.kinds):
            at = f"{c.prefix}layers.{i}."
            n = rms_norm(x, gain(c, self.w[f"{at}input_layernorm.weight"]), eps=c.eps)
            if kind == "full":
                x = x + self._attend(i, f"{at}self_attn.", n, positions, cache)
            else:
                out, done.scans[i], cache.conv[i], cache.recurrent[i] = linear_layer(
                    c, self.w, f"{at}linear_attn.", n, cache.conv[i], cache.recurrent[i]
                )
                x = x + out
            n = rms_norm(x, gain(c, self.w[f"{at}post_attention_layernorm.weight"]), eps=c.eps)
            if i in c.routed:
                out, done.routing[i] = routed_mlp(c, self.w, f"{at}mlp.", n)
                x = x + out
            else:
                x = x + dense_mlp(self.w, f"{at}mlp.", n)
            done.layers.append(x)
            self._tap(cache.tap_sink, i, x)
        done.final = rms_norm(x, gain(c, self.w[f"{c.prefix}norm.weight"]), eps=c.eps)
        cache.pos = start + len(x)
        return done

    def _attend(self, i: int, at: str, n: Floats, positions: np.ndarray, cache: Cache) -> Floats:
        start, end = cache.pos, cache.pos + len(n)
        q, k, v, gate = attention_inputs(self.config, self.w, at, n, positions, cache.table)
        cache.k[i][start:end], cache.v[i][start:end] = k, v
        return attention_output(self.w, at, q, cache.k[i][:end], cache.v[i][:end], start, gate)

    def _tap(self, sink: TapSink | None, layer: int, x: Floats) -> None:
        if sink is not None and layer in sink.layer_ids:
            at = sink.layer_ids.index(layer) * sink.hidden
            sink.buf[sink.base : sink.base + len(x), at : at + sink.hidden] = x

    def prime(self, ids: Sequence[int], cache: Cache) -> Floats:
        """Logits of the last prompt position. [V]."""
        return np.asarray(self.head(self.forward(ids, cache).final[-1:])[0])

    def verify(
        self,
        ids: Any,
        start: int,
        cache: Cache,
        *,
        want: str = "argmax",
        ckpt: bool = False,
        graph: bool = False,
    ) -> VerifyOut:
        """What the target says after each of these tokens; `graph` changes nothing here.

        Errors: ValueError out of place.
        """
        if cache.pos != start:
            raise ValueError(f"verify was asked at {start}, the cache stands at {cache.pos}")
        done = self.forward(ids, cache)
        logits = self.head(done.final)
        scans = done.scans if ckpt else None
        if want == "logits":
            return VerifyOut(None, logits, scans)
        return VerifyOut(np.argmax(logits, axis=1), None, scans)

    def tap_buffer(self, rows: int, width: int) -> Floats:
        """An array for taps."""
        return np.zeros((rows, width))

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def state_bytes(self, cache: Cache) -> dict[str, bytes]:
        """Position and recurrent states, for comparing two ways to the same place."""
        found = {"pos": str(cache.pos).encode()}
        found |= {f"conv.{i}": a.tobytes() for i, a in cache.conv.items()}
        return found | {f"recurrent.{i}": a.tobytes() for i, a in cache.recurrent.items()}

    def refresh_snapshot(self, cache: Cache, snap: Snapshot) -> None:
        """The snapshot's arrays filled again from the cache."""
        for kept, states in ((snap.conv, cache.conv), (snap.recurrent, cache.recurrent)):
            for i, state in states.items():
                kept[i][...] = state
        snap.pos = cache.pos

    def snapshot(self, cache: Cache) -> Snapshot:
        """Copies of everything a rollback needs."""
        conv = {i: a.copy() for i, a in cache.conv.items()}
        return Snapshot(cache.pos, conv, {i: a.copy() for i, a in cache.recurrent.items()})

    def restore(self, cache: Cache, snap: Snapshot) -> None:
        """Back to the snapshot, which stays usable."""
        cache.pos = snap.pos
        cache.conv.update({i: a.copy() for i, a in snap.conv.items()})
        cache.recurrent.update({i: a.copy() for i, a in snap.recurrent.items()})

    def commit_prefix(self, cache: Cache, snap: Snapshot, ckpt: Any, keep: int) -> None:
        """Only the first `keep` verified rows stay: the scans of linear layers are redone."""
        for i, scan in (ckpt or {}).items():
            cache.conv[i], cache.recurrent[i] = scan.prefix(keep, snap.conv[i], snap.recurrent[i])
        cache.pos = snap.pos + keep


def build_target(
    content: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]]
) -> QwenTarget:
    """The target of a configuration and its stored tensors. Errors: ValueError."""
    return QwenTarget(read_qwen_config(content), Tensors(tensors))
