"""The engine against the float64 model, sub-block by sub-block on the engine's own inputs.

The float64 model runs under the law that the engine's arms prescribe, and nothing is inherited:
every part gets the numbers that the engine's part got. Where codes or choices flip, a few rows
differ by whole steps; the median row shows whether the arithmetic is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dsv4.engine.arms import ActQuantVariant, Arms, ExpertArm
from dsv4.engine.capture import Capture
from dsv4.engine.engine import Engine
from oracle.attention_block import attention
from oracle.block import enter, leave
from oracle.laws import LAWS, Law
from oracle.moe_block import moe
from oracle.trunk import Model, entry_state, trunk_logits


@dataclass(frozen=True, slots=True)
class Part:
    """One sub-block on identical inputs: relative L2 errors of its rows.

    worst_row: where the largest is. same_rows: the share of rows within 1e-5.
    """

    name: str
    rows: int
    median: float
    largest: float
    worst_row: int
    same_rows: float


def law_of(arms: Arms) -> Law:
    """The float64 law with exactly the roundings that the arms prescribe."""
    if not arms.quantisers:
        return LAWS["smooth"]
    return replace(
        LAWS["engine"],
        dense_codes=arms.dense_input_fp8,
        expert_codes=arms.expert is ExpertArm.NATIVE,
        kv_codes=arms.variant is ActQuantVariant.REF_FP8_ROUND,
    )


def engine_diff(engine: Engine, model: Model, ids: np.ndarray) -> list[Part]:
    """Every sub-block of a prompt, in the order of the forward pass.

    Errors: StateError for ids that do not fit the engine.
    """
    capture = Capture()
    out = engine.forward(ids, capture)
    assert out is not None and capture.embed_out is not None
    parts = [_part("embed", capture.embed_out, entry_state(model, ids))]
    before = capture.embed_out
    for layer in range(engine.config.n_layers):
        parts += _layer_parts(engine, model, capture, layer, before, ids)
        before = capture.layer_out[layer]
    want = trunk_logits(model, before[-1:].astype(np.float64))
    parts.append(_part("logits", out.logits[None], want))
    return parts


def _layer_parts(
    engine: Engine, model: Model, seen: Capture, layer: int, before: np.ndarray, ids: np.ndarray
) -> Iterator[Part]:
    cond, block = model.conditions, model.weights.blocks[layer]
    at = f"layer{layer}."
    state = before.astype(np.float64)
    x, mixing = enter(cond, block.attn_hyper, state)
    yield _part(f"{at}attn_norm", seen.x_dbg[layer], cond.norm(x, block.attn_norm))
    given = seen.x_dbg[layer].astype(np.float64)
    yield _part(f"{at}attn", seen.attn_out[layer], attention(cond, block.attention, given))
    middle = leave(cond, seen.attn_out[layer].astype(np.float64), state, mixing)
    x, mixing = enter(cond, block.ffn_hyper, middle)
    yield _part(f"{at}ffn_norm", seen.moe_x[layer], cond.norm(x, block.ffn_norm))
    given = seen.moe_x[layer].astype(np.float64)
    yield _part(f"{at}ffn", seen.moe_out[layer], moe(cond, block.moe, given, ids))
    after = leave(cond, seen.moe_out[layer].astype(np.float64), middle, mixing)
    yield _part(f"{at}streams", seen.layer_out[layer], after)


def _part(name: str, got: np.ndarray, want: np.ndarray) -> Part:
    rows = len(want)
    error = np.linalg.norm((got.astype(np.float64) - want).reshape(rows, -1), axis=1)
    norm = np.linalg.norm(want.reshape(rows, -1), axis=1)
    relative = error / np.where(norm > 0, norm, 1.0)
    worst = int(np.argmax(relative))
    return Part(
        name,
        rows,
        float(np.median(relative)),
        float(relative[worst]),
        worst,
        float(np.mean(relative <= 1e-5)),
    )
