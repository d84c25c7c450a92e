"""Stored tensors to weights: official FP8 + MXFP4 layout, DSpark tail, and NVFP4 experts."""

from dataclasses import dataclass

import numpy as np

from oracle.blocks import decode_fp8_block, decode_mxfp4, decode_nvfp4
from oracle.census import Stored, TensorError, check_census, lineage
from oracle.config import ModelConfig
from oracle.formats import Floats, decode
from oracle.weights import (
    Attention,
    Block,
    Compressor,
    Drafter,
    Exit,
    Expert,
    Hyper,
    Indexer,
    Matrix,
    Moe,
    Nextn,
    Weights,
)


def decode_weights(config: ModelConfig, tensors: Stored) -> Weights:
    """The float64 weights of a checkpoint's tensors; every product of code and scale is exact.

    Errors: TensorError for another set of tensors than the configuration wants, another dtype or
    shape, NaN codes, scales that are no scales, or expert ids that are no experts.
    """
    check_census(config, tensors)
    reader = _Reader(config, tensors)
    last = f"mtp.{config.stages - 1}."
    tail = lineage(tensors)
    stages = tuple(reader.block(f"mtp.{k}.", config.n_layers + k) for k in range(config.stages))
    nextn = drafter = None
    if tail == "nextn":
        nextn = Nextn(
            e_proj=reader.fp8("mtp.0.e_proj"),
            h_proj=reader.fp8("mtp.0.h_proj"),
            enorm=reader.plain("mtp.0.enorm.weight"),
            hnorm=reader.plain("mtp.0.hnorm.weight"),
            block=stages[0],
            exit=reader.exit("mtp.0."),
        )
    if tail == "dspark":
        drafter = Drafter(
            main_proj=reader.fp8("mtp.0.main_proj"),
            main_norm=reader.plain("mtp.0.main_norm.weight"),
            stages=stages,
            exit=reader.exit(last),
            markov_w1=reader.plain(f"{last}markov_head.markov_w1.weight"),
            markov_w2=reader.island(f"{last}markov_head.markov_w2.weight"),
            confidence=reader.island(f"{last}confidence_head.proj.weight"),
        )
    return Weights(
        embed=reader.plain("embed.weight"),
        head=reader.island("head.weight"),
        blocks=tuple(reader.block(f"layers.{n}.", n) for n in range(config.n_layers)),
        exit=reader.exit(""),
        nextn=nextn,
        drafter=drafter,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    config: ModelConfig
    tensors: Stored

    def plain(self, name: str) -> Floats:
        dtype, bits = self.tensors[name]
        values = decode(bits, {"BF16": "bf16", "F32": "f32"}[dtype])
        _demand(bool(np.isfinite(values).all()), name, "NaN or infinity")
        return values

    def island(self, name: str) -> Matrix:
        return Matrix(self.plain(name), "island")

    def fp8(self, name: str) -> Matrix:
        codes, scales = self.tensors[f"{name}.weight"][1], self._powers(f"{name}.scale")
        _demand(not ((codes & 0x7F) == 0x7F).any(), f"{name}.weight", "the E4M3 code NaN")
        return Matrix(decode_fp8_block(codes, scales), "fp8", 128)

    def fp4(self, name: str) -> Matrix:
        packed = self.tensors[f"{name}.weight"][1].view(np.uint8)
        if f"{name}.weight_scale_2" not in self.tensors:
            return Matrix(decode_mxfp4(packed, self._powers(f"{name}.scale")), "fp4", 32)
        codes = self.tensors[f"{name}.weight_scale"][1]
        second = float(self.tensors[f"{name}.weight_scale_2"][1])
        _demand(not (codes >= 0x7F).any(), f"{name}.weight_scale", "NaN or a negative scale")
        good = np.isfinite(second) and second > 0
        _demand(bool(good), f"{name}.weight_scale_2", f"{second}: it must be finite and positive")
        return Matrix(decode_nvfp4(packed, codes, second), "fp4", 16)

    def block(self, at: str, layer: int) -> Block:
        return Block(
            attn_hyper=self.hyper(f"{at}hc_attn"),
            attn_norm=self.plain(f"{at}attn_norm.weight"),
            attention=self.attention(f"{at}attn.", layer),
            ffn_hyper=self.hyper(f"{at}hc_ffn"),
            ffn_norm=self.plain(f"{at}ffn_norm.weight"),
            moe=self.moe(f"{at}ffn.", layer),
        )

    def attention(self, at: str, layer: int) -> Attention:
        c = self.config
        ratio, groups = c.compress_ratios[layer], (c.o_groups, c.o_lora_rank, -1)
        indexer = None
        if c.fine(layer):
            indexer = Indexer(
                wq_b=self.fp8(f"{at}indexer.wq_b"),
                weights_proj=Matrix(self.plain(f"{at}indexer.weights_proj.weight"), "bf16"),
                compressor=self.compressor(f"{at}indexer.compressor."),
            )
        return Attention(
            ratio=ratio,
            wq_a=self.fp8(f"{at}wq_a"),
            q_norm=self.plain(f"{at}q_norm.weight"),
            wq_b=self.fp8(f"{at}wq_b"),
            wkv=self.fp8(f"{at}wkv"),
            kv_norm=self.plain(f"{at}kv_norm.weight"),
            sink=self.plain(f"{at}attn_sink"),
            # Stored in FP8, used as a bf16 matrix: its input is never quantised.
            wo_a=Matrix(self.fp8(f"{at}wo_a").values.reshape(groups), "bf16"),
            wo_b=self.fp8(f"{at}wo_b"),
            compressor=self.compressor(f"{at}compressor.") if ratio else None,
            indexer=indexer,
        )

    def compressor(self, at: str) -> Compressor:
        return Compressor(
            wkv=self.island(f"{at}wkv.weight"),
            wgate=self.island(f"{at}wgate.weight"),
            ape=self.plain(f"{at}ape"),
            norm=self.plain(f"{at}norm.weight"),
        )

    def moe(self, at: str, layer: int) -> Moe:
        hashed = layer < self.config.n_hash_layers
        return Moe(
            gate=self.island(f"{at}gate.weight"),
            bias=None if hashed else self.plain(f"{at}gate.bias"),
            table=self._table(f"{at}gate.tid2eid") if hashed else None,
            experts=tuple(
                Expert(*(self.fp4(f"{at}experts.{e}.{w}") for w in ("w1", "w2", "w3")))
                for e in range(self.config.n_routed_experts)
            ),
            shared=Expert(*(self.fp8(f"{at}shared_experts.{w}") for w in ("w1", "w2", "w3"))),
        )

    def exit(self, at: str) -> Exit:
        return Exit(hyper=self.hyper(f"{at}hc_head"), norm=self.plain(f"{at}norm.weight"))

    def hyper(self, at: str) -> Hyper:
        return Hyper(*(self.plain(f"{at}_{part}") for part in ("fn", "base", "scale")))

    def _powers(self, name: str) -> np.ndarray:
        bits = self.tensors[name][1]
        _demand(not (bits == 0xFF).any(), name, "the E8M0 byte 0xFF, which is NaN")
        return bits

    def _table(self, name: str) -> np.ndarray:
        table = self.tensors[name][1]
        inside = (table >= 0) & (table < self.config.n_routed_experts)
        _demand(bool(inside.all()), name, f"ids outside 0..{self.config.n_routed_experts - 1}")
        ordered = np.sort(table, axis=1)
        _demand(not (ordered[:, 1:] == ordered[:, :-1]).any(), name, "an expert twice in a row")
        return table


def _demand(holds: bool, name: str, found: str) -> None:
    if not holds:
        raise TensorError(f"tensor {name} holds {found}\n  the file is damaged; fetch it again")
