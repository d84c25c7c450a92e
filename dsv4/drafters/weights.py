"""Loads a drafter from its published files onto a device, in one of the precision modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.checkpoint.made import MadeTensors, opened
from dsv4.checkpoint.reader import Checkpoint
from dsv4.drafters.backbone import BlockDrafter, DynConv, LayerWeights
from dsv4.drafters.census import (
    CONFIDENCE,
    EXTRA,
    HIDDEN_PROJECTION,
    W1,
    W2,
    DraftCensus,
    published_name,
    take_census,
)
from dsv4.drafters.confidence import ConfidenceHead
from dsv4.drafters.config import DraftConfig, check_taps, draft_config
from dsv4.drafters.markov import MarkovHead
from dsv4.drafters.quant import bf16_to_f32, encode, format_of, precision_named
from dsv4.drafters.selector import Codebooks, SelectorHead
from dsv4.runtime.device import Device
from dsv4.speculation.refusals import refuse
from dsv4.speculation.switches import Switches
from dsv4.targets.layers import Ops, WeightMatrix, bf16_matrix

ATTENTION_RULES = ("seed", "causal_swa")


@dataclass(frozen=True, slots=True)
class _Source:
    stored: Mapping[str, np.ndarray]
    ops: Ops
    precision: str

    def matrix(self, name: str) -> WeightMatrix:
        """A matrix in the format of the precision mode."""
        bits, fmt = self.stored[name], format_of(name, self.precision)
        if fmt == "bf16":
            return bf16_matrix(self.ops, bits)
        blocks = encode(bf16_to_f32(bits), fmt)
        codes, scales = self.ops.bits(blocks.codes), self.ops.bits(blocks.scales)
        return WeightMatrix(fmt, bits.shape[0], bits.shape[1], codes, scales)

    def vector(self, name: str) -> Any:
        """A tensor as float32 numbers on the device."""
        return self.ops.vector(bf16_to_f32(self.stored[name]))


def draft_census(folder: Path, *, target_vocab: int = 0) -> DraftCensus:
    """What a drafter's folder is, from its headers alone. Errors: Refusal naming the rule."""
    with Checkpoint.open(folder, rename=published_name, headers_only=True) as checkpoint:
        content, _ = checkpoint.config()
        shapes = {n: (e.dtype, e.shape) for n, e in checkpoint.entries.items()}
        return take_census(draft_config(content), shapes, target_vocab)


def load_draft(
    folder: Path | MadeTensors,
    device: Device,
    *,
    precision: str = "",
    rule: str = "seed",
    switches: Switches | None = None,
    target_vocab: int = 0,
    target_layers: int = 0,
) -> BlockDrafter:
    """The drafter of a folder, or made. Errors: Refusal naming the rule that its files break.

    precision: a mode of `quant.PRECISIONS`, q8 when empty. rule: what sliding layers of drafters
    without windows see. target_vocab, target_layers: of the target at hand, 0 for unknown.
    """
    switches = Switches() if switches is None else switches
    precision = precision_named(precision or switches.precision)
    if rule not in ATTENTION_RULES:
        raise refuse("attention-rule", "loading a drafter", repr(rule), "name one of both")
    with opened(folder, published_name) as checkpoint:
        content, _ = checkpoint.config()
        config = draft_config(content)
        shapes = {n: (e.dtype, e.shape) for n, e in checkpoint.entries.items()}
        census = take_census(config, shapes, target_vocab)
        if target_layers:
            check_taps(config, target_layers)
        stored = {n: checkpoint.tensor(n) for n in checkpoint}
        return build_draft(census, stored, Ops(device), precision, rule, switches)


def build_draft(
    census: DraftCensus,
    stored: Mapping[str, np.ndarray],
    ops: Ops,
    precision: str,
    rule: str,
    switches: Switches,
) -> BlockDrafter:
    """The drafter of a census and its tensors' bits."""
    c, source = census.config, _Source(stored, ops, precision)
    return BlockDrafter(
        config=c,
        census=census,
        ops=ops,
        fc=source.matrix("fc.weight"),
        hidden_norm=source.vector("hidden_norm.weight"),
        norm=source.vector("norm.weight"),
        layers=tuple(_layer(source, i, c.is_dflash2) for i in range(c.n_layer)),
        markov=_markov(census, source) if switches.markov or census.with_markov else None,
        armed=switches.markov,
        confidence=_confidence(census, stored),
        selector=_selector(census, source) if c.is_dflash2 else None,
        rule=rule,
        clip=switches.clip,
        no_rope=switches.no_rope,
        dump=switches.dump,
        tensor_cores=_tensor_cores(c, switches),
    )


def _tensor_cores(c: DraftConfig, switches: Switches) -> bool:
    if switches.tensor_cores and (c.head_dim % 16 or c.head_dim > 128):
        raise refuse(
            "switch",
            "DSV4_DFLASH_FA",
            f"heads of {c.head_dim} lanes",
            "unset it: tensor cores take heads of 16 to 128 lanes, in steps of 16",
        )
    return switches.tensor_cores


def _layer(source: _Source, i: int, dynamic: bool) -> LayerWeights:
    at = f"layers.{i}."

    def conv(name: str) -> DynConv | None:
        if not dynamic:
            return None
        projection = source.matrix(f"{at}{name}.kernel_projection.weight")
        return DynConv(source.vector(f"{at}{name}.base_kernel"), projection)

    return LayerWeights(
        **{f"w{n}": source.matrix(f"{at}self_attn.{n}_proj.weight") for n in "qkvo"},
        **{f"w_{n}": source.matrix(f"{at}mlp.{n}_proj.weight") for n in ("gate", "up", "down")},
        q_norm=source.vector(f"{at}self_attn.q_norm.weight"),
        k_norm=source.vector(f"{at}self_attn.k_norm.weight"),
        ln_in=source.vector(f"{at}input_layernorm.weight"),
        ln_post=source.vector(f"{at}post_attention_layernorm.weight"),
        attention_conv=conv("attention_conv"),
        mlp_conv=conv("mlp_conv"),
    )


def _markov(census: DraftCensus, source: _Source) -> MarkovHead | None:
    if not census.markov_rank:
        return None
    kind, ops = census.config.markov_type, source.ops
    extra = bias = None
    if kind in EXTRA:
        weight_name, bias_name = EXTRA[kind]
        extra = bf16_matrix(ops, source.stored[weight_name])
        bias = source.vector(bias_name)
    return MarkovHead(
        kind, ops.bits(source.stored[W1]), source.matrix(W2), census.markov_rank, extra, bias
    )


def _confidence(census: DraftCensus, stored: Mapping[str, np.ndarray]) -> ConfidenceHead | None:
    if not census.has_confidence:
        return None
    weight, bias = (bf16_to_f32(stored[n]) for n in CONFIDENCE)
    return ConfidenceHead(weight[0], float(bias[0]), census.with_markov)


def _selector(census: DraftCensus, source: _Source) -> SelectorHead:
    assert census.config.selector is not None
    books = (
        source.stored[f"candidate_selector.{n}_codebook"] for n in ("predecessor", "successor")
    )
    return SelectorHead(
        Codebooks(*(np.array(b) for b in books)),
        source.matrix(HIDDEN_PROJECTION),
        census.config.selector.top_k,
    )
