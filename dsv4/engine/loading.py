"""Brings weights to their stage: decodes what the arms want decoded, checks what can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.checkpoint.config import FINE_RATIO, ModelConfig
from dsv4.engine.source import WeightSource
from dsv4.engine.weights import (
    CompressorWeights,
    DenseSlab,
    DsparkWeights,
    ExitWeights,
    ExpertBank,
    ExpertKind,
    Fp4Bank,
    Fp8Pair,
    HyperWeights,
    IndexerWeights,
    LayerWeights,
    MtpWeights,
    SharedExpert,
)
from dsv4.errors import Refusal
from dsv4.kernels.dequant import dequant_fp8_block, dequant_ue8m0
from dsv4.rope_table import Yarn, rope_table
from dsv4.runtime.device import Device
from dsv4.spec import BF16, F32


@dataclass(frozen=True, slots=True)
class Loader:
    """Makes the weights of one stage. dense_fp8: keep FP8 matrices as stored."""

    source: WeightSource
    device: Device
    dense_fp8: bool

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.source.census.config

    def layer(self, number: int) -> LayerWeights:
        """A block of the trunk, or one behind it."""
        c = self.config
        at, ratio = c.blocks[number], c.compress_ratios[number]
        hashed = c.is_hash_layer(number)
        attn, ffn = f"{at}attn.", f"{at}ffn."
        return LayerWeights(
            layer=number,
            ratio=ratio,
            attn_hyper=self.hyper(f"{at}hc_attn"),
            attn_norm=self.floats(f"{at}attn_norm.weight"),
            wq_a=self.fp8(f"{attn}wq_a"),
            q_norm=self.floats(f"{attn}q_norm.weight"),
            wq_b=self.fp8(f"{attn}wq_b"),
            wkv=self.fp8(f"{attn}wkv"),
            kv_norm=self.floats(f"{attn}kv_norm.weight"),
            sink=self.floats(f"{attn}attn_sink"),
            wo_a=self.fp8(f"{attn}wo_a"),
            wo_b=self.fp8(f"{attn}wo_b"),
            compressor=self.compressor(f"{attn}compressor.", ratio, c.head_dim) if ratio else None,
            indexer=self.indexer(f"{attn}indexer.") if ratio == FINE_RATIO else None,
            ffn_hyper=self.hyper(f"{at}hc_ffn"),
            ffn_norm=self.floats(f"{at}ffn_norm.weight"),
            gate=self.stored(f"{ffn}gate.weight"),
            bias=None if hashed else self.floats(f"{ffn}gate.bias"),
            table=self.stored(f"{ffn}gate.tid2eid") if hashed else None,
            experts=self.experts(at),
            shared=SharedExpert(
                *(self.fp8(f"{ffn}shared_experts.{w}") for w in ("w1", "w2", "w3"))
            ),
        )

    def stored(self, name: str) -> Any:
        """A tensor as it is stored."""
        return self.source.tensor(self.device, name)

    def floats(self, name: str) -> Any:
        """A vector or small matrix as f32, widened exactly."""
        array = self.stored(name)
        if array.dtype != np.uint16:
            return array
        bits = self.device.to_numpy(array)
        return self.device.to_device((bits.astype(np.uint32) << 16).view(np.float32))

    def fp8(self, name: str) -> DenseSlab:
        """A matrix stored as FP8 codes and powers of two, in the form that the arms want.

        Errors: Refusal when it is not exact in bf16.
        """
        codes, powers = self.stored(f"{name}.weight"), self.stored(f"{name}.scale")
        rows, columns = (int(n) for n in codes.shape)
        if self.dense_fp8:
            scales = self.device.empty((powers.size,), F32)
            dequant_ue8m0.prepare(powers.reshape(-1), out=scales, device=self.device).run()
            pair = Fp8Pair(codes, powers, scales.reshape(powers.shape))
            return DenseSlab(name, rows, columns, None, pair)
        bf16 = self.device.empty((rows, columns), BF16)
        inexact = self.device.to_device(np.zeros(1, np.int32))
        dequant_fp8_block.prepare(codes, powers, y=bf16, inexact=inexact, device=self.device).run()
        self._demand_exact(name, inexact)
        return DenseSlab(name, rows, columns, bf16, None)

    def bf16(self, name: str) -> DenseSlab:
        """A matrix stored in bf16."""
        array = self.stored(name)
        rows, columns = (int(n) for n in array.shape)
        return DenseSlab(name, rows, columns, array, None)

    def hyper(self, at: str) -> HyperWeights:
        """A hyper-connection."""
        return HyperWeights(*(self.stored(f"{at}_{part}") for part in ("fn", "base", "scale")))

    def exit(self, at: str) -> ExitWeights:
        """The collapse and norm before a head."""
        return ExitWeights(self.hyper(f"{at}hc_head"), self.floats(f"{at}norm.weight"))

    def compressor(self, at: str, ratio: int, width: int) -> CompressorWeights:
        """A compressor; its matrices stay bf16, its products are float32 islands."""
        return CompressorWeights(
            ratio=ratio,
            overlap=ratio == FINE_RATIO,
            width=width,
            wkv=self.stored(f"{at}wkv.weight"),
            wgate=self.stored(f"{at}wgate.weight"),
            ape=self.stored(f"{at}ape"),
            norm=self.floats(f"{at}norm.weight"),
        )

    def indexer(self, at: str) -> IndexerWeights:
        """An indexer with its own compressor."""
        c = self.config
        return IndexerWeights(
            wq_b=self.fp8(f"{at}wq_b"),
            weights_proj=self.bf16(f"{at}weights_proj.weight"),
            compressor=self.compressor(f"{at}compressor.", FINE_RATIO, c.index_head_dim),
        )

    def experts(self, at: str) -> ExpertBank:
        """The routed experts of a block, one slab a matrix."""
        nvfp4 = at in self.source.census.layout.nvfp4

        def bank(matrix: str) -> Fp4Bank:
            names = [f"{at}ffn.experts.{e}.{matrix}" for e in range(self.config.n_routed_experts)]
            if not nvfp4:
                return Fp4Bank(self._bank(names, ".weight"), self._bank(names, ".scale"), None)
            codes, scales = self._bank(names, ".weight"), self._bank(names, ".weight_scale")
            return Fp4Bank(codes, scales, self._bank(names, ".weight_scale_2").reshape(-1))

        kind = ExpertKind.NVFP4 if nvfp4 else ExpertKind.MXFP4
        return ExpertBank(kind, bank("w1"), bank("w2"), bank("w3"))

    def mtp(self) -> MtpWeights:
        """The next-token block behind the trunk."""
        return MtpWeights(
            e_proj=self.fp8("mtp.0.e_proj"),
            h_proj=self.fp8("mtp.0.h_proj"),
            enorm=self.floats("mtp.0.enorm.weight"),
            hnorm=self.floats("mtp.0.hnorm.weight"),
            layer=self.layer(self.config.n_layers),
            exit=self.exit("mtp.0."),
        )

    def dspark(self) -> DsparkWeights:
        """The drafter behind the trunk."""
        c = self.config
        last = f"mtp.{c.stages - 1}."
        return DsparkWeights(
            blocks=tuple(self.layer(c.n_layers + k) for k in range(c.stages)),
            main_proj=self.fp8("mtp.0.main_proj"),
            main_norm=self.floats("mtp.0.main_norm.weight"),
            exit=self.exit(last),
            markov_w1=self.stored(f"{last}markov_head.markov_w1.weight"),
            markov_w2=self.stored(f"{last}markov_head.markov_w2.weight"),
            confidence=self.stored(f"{last}confidence_head.proj.weight").reshape(-1),
        )

    def _bank(self, names: Sequence[str], suffix: str) -> Any:
        return self.source.bank(self.device, [f"{name}{suffix}" for name in names])

    def _demand_exact(self, name: str, inexact: Any) -> None:
        count = int(self.device.to_numpy(inexact)[0])
        if count:
            raise Refusal(
                f"{name} was to become bf16\n  {count} of its elements are not bf16 numbers\n"
                f"  in {self.source.where}\n  load it with DSV4_DENSE_ARM=fp8"
            )


def rope_tables(config: ModelConfig, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """(table of layers without blocks, table of all others), f32 [positions, R].

    Errors: Refusal for positions that float32 cannot count.
    """
    c = config
    yarn = Yarn(c.original_seq_len, c.rope_factor, c.beta_fast, c.beta_slow)
    return (
        rope_table(positions, c.rope_head_dim, c.rope_theta),
        rope_table(positions, c.rope_head_dim, c.compress_rope_theta, yarn),
    )
