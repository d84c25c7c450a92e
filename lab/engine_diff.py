"""The engine against the float64 model, sub-block by sub-block on the engine's own inputs.

The float64 model runs under the law that the engine's arms prescribe, and nothing is inherited:
every part gets the numbers that the engine's part got. Where codes or choices flip, a few rows
differ by whole steps; the median row shows whether the arithmetic is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsv4.engine.arms import ActQuantVariant, Arms, ExpertArm
from dsv4.engine.capture import Capture
from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal
from lab.engine_run import SWITCHES
from lab.recorded import read_recorded, refusing
from lab.stored import RECORDED, Checkpoint
from oracle.attention_block import attention
from oracle.block import enter, leave
from oracle.cache import new_layer_cache
from oracle.config import read_config
from oracle.laws import LAWS, Law
from oracle.moe_block import moe
from oracle.trunk import Model, build_model, entry_state, trunk_logits

PART_BOUND = 1e-5
"""Of the median row, relative L2."""


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

    @property
    def passed(self) -> bool:
        """Whether the median row keeps to its bound; NaN does not."""
        return self.median <= PART_BOUND


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
    yield from _blocks(model, seen, layer, given)
    yield _part(f"{at}attn", seen.attn_out[layer], attention(cond, block.attention, given))
    middle = leave(cond, seen.attn_out[layer].astype(np.float64), state, mixing)
    x, mixing = enter(cond, block.ffn_hyper, middle)
    yield _part(f"{at}ffn_norm", seen.moe_x[layer], cond.norm(x, block.ffn_norm))
    given = seen.moe_x[layer].astype(np.float64)
    yield _part(f"{at}ffn", seen.moe_out[layer], moe(cond, block.moe, given, ids))
    after = leave(cond, seen.moe_out[layer].astype(np.float64), middle, mixing)
    yield _part(f"{at}streams", seen.layer_out[layer], after)


def _blocks(model: Model, seen: Capture, layer: int, given: np.ndarray) -> Iterator[Part]:
    """The compressed rows and index keys of all complete blocks."""
    cond, a = model.conditions, model.weights.blocks[layer].attention
    if not len(seen.compressor_kv.get(layer, ())):
        return
    keys = a.indexer.compressor if a.indexer is not None else None
    cache = new_layer_cache(cond.config, a.ratio, len(given), cond.law.real)
    for name, part, compressor, held in (
        ("blocks", cache.compressed, a.compressor, seen.compressor_kv),
        ("index_keys", cache.index, keys, seen.indexer_kv),
    ):
        if part is not None and compressor is not None:
            part.extend(cond, compressor, given, 0)
            yield _part(f"layer{layer}.{name}", held[layer], part.store[: len(held[layer])])


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


def engine_against_oracle(
    folder: Path,
    *,
    law: str = "engine",
    backend: str = "auto",
    switches: Mapping[str, str | None] | None = None,
    tokens: int = 48,
) -> list[Part]:
    """`engine_diff` of a checkpoint folder: on recorded ids where there are some, else on others.

    Errors: Refusal for what cannot be opened, and for a law that the engine has no arms for.
    """
    if law not in SWITCHES:
        raise Refusal(
            f"the engine was asked for the law {law}\n  it has arms for {', '.join(SWITCHES)}\n"
            "  in lab.engine_diff\n  choose one of these"
        )
    arms = resolve_arms(**{**SWITCHES[law], **(switches or {})})
    if (folder / RECORDED).is_file():
        recorded = read_recorded(folder)
        config, tensors, ids = recorded.config, recorded.tensors, recorded.ids
    else:
        with refusing(folder):
            content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config = read_config(content)
        stored = Checkpoint(folder)
        tensors = {name: (stored.dtype(name), stored.tensor(name).bits) for name in stored}
        ids = np.random.default_rng(0).integers(0, config.vocab_size, tokens)
    engine = Engine.load(folder, backend=backend, max_seq=len(ids), arms=arms)
    with refusing(folder):
        model = build_model(config, tensors, law_of(arms), len(ids))
    return engine_diff(engine, model, ids)
