"""A block drafter on a device: context features, its own cache, a block through its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.drafters.attention import visible_range, windowed
from dsv4.drafters.census import DraftCensus
from dsv4.drafters.confidence import ConfidenceHead
from dsv4.drafters.config import DraftConfig
from dsv4.drafters.markov import MarkovHead, chain_greedy, chain_sampled
from dsv4.drafters.rope import neox_table
from dsv4.drafters.selector import SelectorHead
from dsv4.errors import StateError
from dsv4.kernels.dynconv import dynconv
from dsv4.kernels.scale import scale_softcap
from dsv4.speculation.draft_model import GreedyChain
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import Counters, Proposal, Sampler, SpecSampling
from dsv4.targets.layers import Ops, WeightMatrix

Probe = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class DynConv:
    """A convolution around a sublayer: base [2,C,D], projection [2*C*G,D]."""

    base: Any
    projection: WeightMatrix


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer of a drafter; the convolutions are None except in DFlash2."""

    wq: WeightMatrix
    wk: WeightMatrix
    wv: WeightMatrix
    wo: WeightMatrix
    w_gate: WeightMatrix
    w_up: WeightMatrix
    w_down: WeightMatrix
    q_norm: Any
    k_norm: Any
    ln_in: Any
    ln_post: Any
    attention_conv: DynConv | None
    mlp_conv: DynConv | None


@dataclass(slots=True)
class DraftKV:
    """Keys and values of `length` committed rows by layer, with room for a block behind `cap`.

    Nothing is ever cut: rejected rows were never ingested. dead: why it cannot go on.
    """

    k: list[Any]
    v: list[Any]
    table: Any
    cap: int
    length: int = 0
    dead: str = ""


def ignore(name: str, value: Any) -> None:
    """A probe that listens to nothing."""


@dataclass(frozen=True, slots=True)
class BlockDrafter:
    """A drafter: weights on a device. See `dsv4.speculation.draft_model` for its promises.

    armed: whether the token bias is added. rule, clip, tensor_cores: see
    `dsv4.drafters.attention`. no_rope and dump are instruments: `forward_block` without rotation,
    and a folder for raw f32 arrays.
    """

    config: DraftConfig
    census: DraftCensus
    ops: Ops
    fc: WeightMatrix
    hidden_norm: Any
    norm: Any
    layers: tuple[LayerWeights, ...]
    markov: MarkovHead | None
    armed: bool
    confidence: ConfidenceHead | None
    selector: SelectorHead | None
    rule: str
    clip: bool
    no_rope: bool
    dump: str
    tensor_cores: bool = False

    @property
    def has_confidence(self) -> bool:
        """Whether it scores its own drafts."""
        return self.confidence is not None

    @property
    def wants_stash(self) -> bool:
        """Whether its scores need the token rows of the chain."""
        return self.confidence is not None and self.confidence.with_markov

    def new_kv(self, cap: int) -> DraftKV:
        """An empty cache for that many context rows and a block behind them."""
        c = self.config
        shape = (cap + c.block_size, c.n_kv, c.head_dim)
        k, v = ([self.ops.zeros(*shape) for _ in range(c.n_layer)] for _ in range(2))
        table = neox_table(cap + c.block_size, c.head_dim, c.rope_theta, c.yarn)
        return DraftKV(k, v, self.ops.vector(table), cap)

    def ctx_features(self, taps: Any) -> Any:
        """Features of context rows, one by one. [T,nt*D] -> [T,D]."""
        features = self.ops.norm(self.ops.linear(self.fc, taps), self.hidden_norm, self.config.eps)
        self._write("ctx_features", features)
        return features

    def ingest_ctx(self, kv: DraftKV, features: Any, positions: Sequence[int]) -> None:
        """Append context rows. Errors: DrafterRefusal when they do not fit or leave a gap."""
        rows = len(features)
        _alive(kv)
        self._check_positions("positions-context", positions, kv.length, rows)
        if kv.length + rows > kv.cap:
            raise refuse(
                "draft-kv-overflow",
                f"{rows} context rows",
                f"{kv.length} of {kv.cap} are taken",
                "open a larger cache",
            )
        kv.dead = "rows were not ingested in every layer"
        at = self.ops.ints(np.asarray(positions))
        for i in range(self.config.n_layer):
            self._write_keys(i, kv, features, at)
        kv.length, kv.dead = kv.length + rows, ""

    def forward_round(
        self, kv: DraftKV, noise: Any, positions: Sequence[int], probe: Probe = ignore
    ) -> Any:
        """The block after its final norm, behind the context; its keys are scratch. [B,D]."""
        _alive(kv)
        self._check_positions("positions-block", positions, kv.length, len(noise))
        if len(noise) > self.config.block_size:
            raise refuse(
                "positions-block",
                f"a block of {len(noise)} rows",
                f"blocks have {self.config.block_size}",
                "pass the anchor and its masks",
            )
        c, ops, x = self.config, self.ops, noise.copy()
        at = ops.ints(np.asarray(positions))
        for i, layer in enumerate(self.layers):
            n = ops.norm(x, layer.ln_in, c.eps)
            self._write("l0_xn", n, i == 0)
            y = self._around(
                layer.attention_conv,
                f"layer{i}.attention_conv",
                n,
                self._attention(i, kv, at),
                probe,
            )
            ops.add(y, x)
            self._write("l0_x1", x, i == 0)
            n = ops.norm(x, layer.ln_post, c.eps)
            ops.add(self._around(layer.mlp_conv, f"layer{i}.mlp_conv", n, self._mlp(i), probe), x)
            probe(f"layer{i}.hidden", x)
            self._write(f"layer{i}_out", x)
        return ops.norm(x, self.norm, c.eps)

    def forward_block(self, features: Any, noise: Any, positions: Sequence[int]) -> Any:
        """The block given all context features at once. positions: of context, then of the block.

        Errors: DrafterRefusal when they are not consecutive from 0.
        """
        total = len(features) + len(noise)
        self._check_positions("positions-context", positions, 0, total)
        kv = self.new_kv(len(features))
        if self.no_rope:
            kv.table = self.ops.vector(
                np.repeat([[1.0, 0.0]], self.config.head_dim // 2, axis=1).repeat(total, axis=0)
            )
        self.ingest_ctx(kv, features, range(len(features)))
        return self.forward_round(kv, noise, range(len(features), total))

    def forward(self, taps: Any, noise: Any, positions: Sequence[int]) -> Any:
        """As `forward_block`, from taps."""
        return self.forward_block(self.ctx_features(taps), noise, positions)

    def scaled(self, logits: Any) -> Any:
        """Logits after the multiplier and the soft cap of the configuration."""
        c = self.config
        if c.output_multiplier == 1.0 and not c.softcap:
            return logits
        return self._scale(logits, c.output_multiplier, c.softcap)

    def noise(self, rows: Any, scale: float) -> Any:
        """Embedding rows of a block, times the configuration's scale and the given one."""
        factor = self.config.embedding_scale * scale
        return rows if factor == 1.0 else self._scale(rows, factor, 0.0)

    def chain_greedy(self, logits: Any, rows: Any, anchor: int, *, stash: bool) -> GreedyChain:
        """Each slot's best token, given the one before it; the bias stays in the logits."""
        return chain_greedy(
            self.ops, self.markov, logits, rows, anchor, armed=self.armed, stash=stash
        )

    def propose_greedy(self, logits: Any, rows: Any, anchor: int) -> list[int]:
        """The greedy walk through candidates. Errors: DrafterRefusal unless it is DFlash2."""
        return self._selector().propose_greedy(self.ops, logits, rows, anchor)

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
            head = self._selector()
            return head.propose_sampled(self.ops, logits, rows, anchor, sampling, counters), None
        return chain_sampled(
            self.ops,
            self.markov,
            logits,
            rows,
            anchor,
            sampling,
            counters,
            sampler,
            armed=self.armed,
            stash=self.wants_stash,
        )

    def raw_scores(self, rows: Any, stash: Any) -> np.ndarray:
        """The raw confidence of every slot, on the host. [N]."""
        if self.confidence is None:
            raise refuse(
                "confidence-missing", "confidence scores", "no such head", "use the ladder"
            )
        if self.confidence.with_markov and stash is None:
            raise refuse("internal", "confidence scores", "no rows of the chain", "stash them")
        hidden = self.to_host(rows)
        previous = [None] * len(hidden) if stash is None else list(self.to_host(stash))
        scores = zip(hidden, previous, strict=True)
        return np.array([self.confidence.raw_score(h, e) for h, e in scores], np.float32)

    def to_host(self, array: Any) -> np.ndarray:
        """A copy on the host."""
        return self.ops.device.to_numpy(array)

    def _selector(self) -> SelectorHead:
        if self.selector is None:
            raise refuse(
                "not-dflash2",
                "a walk through candidates",
                f"a {self.config.family} drafter",
                "use its chain",
            )
        return self.selector

    def _around(
        self,
        conv: DynConv | None,
        name: str,
        n: Any,
        sublayer: Callable[[Any], Any],
        probe: Probe,
    ) -> Any:
        """A sublayer with the convolution before and after it, where the drafter has one."""
        if conv is None:
            return sublayer(n)
        ops, taps = self.ops, conv.base.shape[1]
        own = ops.linear(conv.projection, n).reshape(len(n), 2, taps, -1)
        before = ops.empty(*n.shape)
        ops.run(dynconv, n, conv.base, own, out=before, stage=0)
        out = sublayer(before)
        after = ops.empty(*n.shape)
        ops.run(dynconv, out, conv.base, own, out=after, stage=1)
        stages = dict(
            kernel_projection=own,
            prepare_input=n,
            prepare_output=before,
            finish_input=out,
            finish_output=after,
        )
        for stage, value in stages.items():
            probe(f"{name}.{stage}", value)
        return after

    def _attention(self, i: int, kv: DraftKV, at: Any) -> Callable[[Any], Any]:
        c, ops, w = self.config, self.ops, self.layers[i]

        def attend(n: Any) -> Any:
            rows, end = len(n), kv.length + len(n)
            q = ops.linear(w.wq, n).reshape(rows, c.n_head, c.head_dim)
            self._write("l0_q0", q, i == 0)
            q = ops.norm(q, w.q_norm, c.eps)
            self._write("l0_qn", q, i == 0)
            self._write("l0_q_prerope", q, i == 0)
            q = ops.rotate(q, kv.table, at)
            self._write_keys(i, kv, n, at)
            first, last = visible_range(c, self.rule, i, kv.length, rows)
            out = windowed(
                ops,
                q,
                kv.k[i][:end],
                kv.v[i][:end],
                first,
                last,
                clip=self.clip,
                tensor_cores=self.tensor_cores,
            )
            for name, value in (("l0_q", q), ("l0_k", kv.k[i][:end]), ("l0_attn", out)):
                self._write(name, value, i == 0)
            return ops.linear(w.wo, out.reshape(rows, -1))

        return attend

    def _mlp(self, i: int) -> Callable[[Any], Any]:
        w = self.layers[i]
        return lambda n: self.ops.mlp(w.w_gate, w.w_up, w.w_down, n)

    def _write_keys(self, i: int, kv: DraftKV, rows: Any, at: Any) -> None:
        """Keys and values of rows, behind the committed ones."""
        c, ops, w = self.config, self.ops, self.layers[i]
        place = slice(kv.length, kv.length + len(rows))
        k = ops.linear(w.wk, rows).reshape(len(rows), c.n_kv, c.head_dim)
        kv.k[i][place] = ops.rotate(ops.norm(k, w.k_norm, c.eps), kv.table, at)
        kv.v[i][place] = ops.linear(w.wv, rows).reshape(len(rows), c.n_kv, c.head_dim)

    def _scale(self, x: Any, factor: float, cap: float) -> Any:
        y = self.ops.empty(*x.shape)
        self.ops.run(scale_softcap, x, out=y, factor=factor, cap=cap)
        return y

    def _check_positions(self, code: str, positions: Sequence[int], start: int, rows: int) -> None:
        if len(positions) != rows:
            raise refuse(code, f"{rows} rows", f"{len(positions)} positions", "pass one for each")
        if not np.array_equal(np.asarray(positions), np.arange(start, start + rows)):
            raise refuse(
                code,
                f"{rows} rows behind {start}",
                f"positions from {positions[0]} to {positions[-1]}",
                "pass consecutive positions",
            )

    def _write(self, name: str, value: Any, wanted: bool = True) -> None:
        if self.dump and wanted:
            folder = Path(self.dump)
            folder.mkdir(parents=True, exist_ok=True)
            self.to_host(value).astype("<f4").tofile(folder / name)


def _alive(kv: DraftKV) -> None:
    if kv.dead:
        raise StateError(
            f"a drafter's cache was asked for another pass\n  it is dead: {kv.dead}\n"
            "  open a new one and ingest the context again"
        )
