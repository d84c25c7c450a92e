"""The backbone of block drafters: context rows into keys and values, a block through the layers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oracle.draft_config import DraftConfig
from oracle.dynconv import dynconv
from oracle.formats import Floats
from oracle.qwen3 import Tensors
from oracle.rms_norm import rms_norm
from oracle.rope_neox import neox_table, rope_neox
from oracle.sdpa import grouped_attention
from oracle.swiglu import swiglu

Probe = Callable[[str, np.ndarray], None]
RULES = ("seed", "causal_swa")


def ignore(name: str, value: np.ndarray) -> None:
    """A probe that listens to nothing."""


@dataclass(slots=True)
class DraftKV:
    """Keys and values of committed context rows by layer, with room for a block behind them."""

    k: list[np.ndarray]
    v: list[np.ndarray]
    cap: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Backbone:
    """A drafter's layers. rule: what sliding layers see inside and before the block.

    Under "seed" only drafters with a dynamic convolution are windowed, and nobody is causal; under
    "causal_swa" sliding layers see the newest `window` positions up to their own.
    """

    config: DraftConfig
    w: Tensors
    table: np.ndarray
    rule: str = "seed"

    def context(self, taps: Floats) -> Floats:
        """Features of context rows from tapped residual rows. [T,nt*D] -> [T,D]."""
        mixed = taps @ self.w["fc.weight"].T
        return rms_norm(mixed, self.w["hidden_norm.weight"], eps=self.config.eps)

    def new_kv(self, cap: int) -> DraftKV:
        """An empty cache."""
        c = self.config
        shape = (cap + c.block, c.kv_heads, c.width)
        k, v = ([np.zeros(shape) for _ in range(c.layers)] for _ in range(2))
        return DraftKV(k, v, cap)

    def ingest(self, kv: DraftKV, features: Floats) -> None:
        """Append context rows at the next positions. Errors: ValueError when they do not fit."""
        if kv.length + len(features) > kv.cap:
            raise ValueError(f"{len(features)} rows do not fit after {kv.length} of {kv.cap}")
        rows = slice(kv.length, kv.length + len(features))
        for i in range(self.config.layers):
            kv.k[i][rows], kv.v[i][rows] = self._keys(i, features, kv.length)
        kv.length += len(features)

    def block(self, kv: DraftKV, noise: Floats, probe: Probe = ignore) -> Floats:
        """The block after its final norm; its keys are scratch behind the context. [B,D]."""
        c, x = self.config, noise
        for i in range(c.layers):
            at = f"layers.{i}."
            n = rms_norm(x, self.w[f"{at}input_layernorm.weight"], eps=c.eps)
            attend = self._attention(i, kv)
            x = x + self._around(f"{at}attention_conv", n, attend, probe)
            n = rms_norm(x, self.w[f"{at}post_attention_layernorm.weight"], eps=c.eps)
            x = x + self._around(f"{at}mlp_conv", n, self._mlp(i), probe)
            probe(f"layer{i}.hidden", x)
        return rms_norm(x, self.w["norm.weight"], eps=c.eps)

    def _around(
        self, at: str, n: Floats, sublayer: Callable[[Floats], Floats], probe: Probe
    ) -> Floats:
        """A sublayer with the convolution before and after it, where the drafter has one."""
        if not self.config.dynamic:
            return sublayer(n)
        name = at.replace("layers.", "layer")
        base = self.w[f"{at}.base_kernel"]
        own = n @ self.w[f"{at}.kernel_projection.weight"].T
        own = own.reshape(len(n), 2, base.shape[1], -1)
        probe(f"{name}.kernel_projection", own)
        before = dynconv(n, base, own, stage=0).value
        probe(f"{name}.prepare_input", n)
        probe(f"{name}.prepare_output", before)
        out = sublayer(before)
        after = dynconv(out, base, own, stage=1).value
        probe(f"{name}.finish_input", out)
        probe(f"{name}.finish_output", after)
        return after

    def _attention(self, i: int, kv: DraftKV) -> Callable[[Floats], Floats]:
        c, at = self.config, f"layers.{i}.self_attn."

        def attend(n: Floats) -> Floats:
            start, end = kv.length, kv.length + len(n)
            positions = np.arange(start, end)
            q = (n @ self.w[f"{at}q_proj.weight"].T).reshape(len(n), c.heads, -1)
            q = rms_norm(q, self.w[f"{at}q_norm.weight"], eps=c.eps)
            q = rope_neox(q, self.table, positions).value
            kv.k[i][start:end], kv.v[i][start:end] = self._keys(i, n, start)
            out = grouped_attention(q, kv.k[i][:end], kv.v[i][:end], self.visible(i, start, len(n)))
            return np.asarray(out.reshape(len(n), -1) @ self.w[f"{at}o_proj.weight"].T)

        return attend

    def visible(self, layer: int, start: int, rows: int) -> np.ndarray:
        """Which keys each block row sees in a layer. [B, start + B]."""
        keys, own = np.arange(start + rows)[None, :], np.arange(start, start + rows)[:, None]
        if not self.config.sliding[layer] or self.config.window is None:
            return np.ones((rows, start + rows), bool)
        inside = keys > own - self.config.window
        if self.config.dynamic:
            return inside
        if self.rule == "causal_swa":
            return inside & (keys <= own)
        return np.ones((rows, start + rows), bool)

    def _keys(self, i: int, rows: Floats, start: int) -> tuple[Floats, Floats]:
        c, at = self.config, f"layers.{i}.self_attn."
        k = (rows @ self.w[f"{at}k_proj.weight"].T).reshape(len(rows), c.kv_heads, -1)
        k = rms_norm(k, self.w[f"{at}k_norm.weight"], eps=c.eps)
        k = rope_neox(k, self.table, np.arange(start, start + len(rows))).value
        return k, (rows @ self.w[f"{at}v_proj.weight"].T).reshape(len(rows), c.kv_heads, -1)

    def _mlp(self, i: int) -> Callable[[Floats], Floats]:
        at = f"layers.{i}.mlp."

        def mlp(n: Floats) -> Floats:
            gate, up = (n @ self.w[f"{at}{part}_proj.weight"].T for part in ("gate", "up"))
            return np.asarray(swiglu(gate, up, 0.0) @ self.w[f"{at}down_proj.weight"].T)

        return mlp


def build_backbone(config: DraftConfig, w: Tensors, max_ctx: int, rule: str = "seed") -> Backbone:
    """The backbone with rotary angles for that many positions and a block behind them."""
    count = max_ctx + config.block
    return Backbone(config, w, neox_table(count, config.width, config.theta, config.yarn), rule)
