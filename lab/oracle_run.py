"""What the float64 model says about a recorded folder, under the names of the recorded outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lab.recorded import Recorded
from oracle.argmax import argmax
from oracle.block import Probe
from oracle.cache import LayerCache, attention_step, new_layer_cache
from oracle.drafter import Draft, DrafterCache, draft, ingest, new_drafter_cache
from oracle.nextn import nextn_forward
from oracle.trunk import (
    Model,
    TrunkCache,
    entry_state,
    forward,
    new_cache,
    run_layer,
    step,
    tap,
    trunk_logits,
)

Arrays = dict[str, np.ndarray]


class Pair(NamedTuple):
    """One output computed from recorded inputs, beside the recorded one."""

    name: str
    got: np.ndarray
    want: np.ndarray


def end_to_end(recorded: Recorded, model: Model) -> Arrays:
    """Every output from the ids alone: prefill, decode steps with a draft each, final caches.

    Errors: ValueError when the ids do not fit the model.
    """
    if model.weights.nextn is not None:
        output = forward(model, recorded.ids)
        logits = nextn_forward(model, output.state, recorded.ids)[-1]
        return {
            "trunk.h": output.state,
            "prefill.logits": output.logits[-1],
            "mtp.logits": logits,
        }
    got: Arrays = {}
    cache = new_cache(model)
    prompt, ids = recorded.prompt, recorded.ids
    output = step(model, cache, ids[:prompt], _into(got, "prefill."))
    got |= {"prefill.logits": output.logits[-1], "prefill.main_hidden": output.taps}
    drafts: list[Draft] = []
    rings = None
    if model.weights.drafter is not None:
        rings = new_drafter_cache(model)
        ingest(model, rings, output.taps)
    rows, taps = [], []
    for position in range(prompt, len(ids)):
        probe = _into(got, f"decode{position}.")
        output = step(model, cache, ids[position : position + 1], probe)
        rows.append(output.logits[0])
        taps.append(output.taps[0])
        if rings is not None:
            ingest(model, rings, output.taps)
            drafts.append(draft(model, rings, int(argmax(output.logits)[0])))
    if rows:
        got |= {"decode.logits": np.stack(rows), "decode.main_hidden": np.stack(taps)}
    if drafts:
        got["spec.out_ids"] = np.stack([d.tokens for d in drafts])
        got["spec.logits"] = np.stack([d.logits for d in drafts])
        got["spec.confidence"] = np.stack([d.confidence for d in drafts])
    return got | _caches(cache, rings)


def on_recorded_inputs(recorded: Recorded, model: Model, prefix: str) -> Iterator[Pair]:
    """Each part computed from its recorded input, in the order of the forward pass.

    Only what the folder holds, under names that start with the prefix.
    """
    arrays, prompt = recorded.arrays, recorded.prompt
    tokens = recorded.ids[:prompt]
    for layer in range(model.config.n_layers):
        state = _input_of(recorded, model, layer, prefix)
        if state is None or f"{prefix}prefill.layer{layer}" not in arrays:
            continue
        got: Arrays = {}
        got[f"prefill.layer{layer}"] = run_layer(
            model, layer, state, tokens, _into(got, f"prefill.sub.{layer}.")
        )
        normed = got[f"prefill.sub.{layer}.attn_norm"]
        yield from _recorded_pairs(recorded, got, prefix)
        yield from _compressed(recorded, model, layer, normed, prefix)
        yield from _first_step(recorded, model, layer, state, prefix)
    yield from _after_the_layers(recorded, model, prefix)


def _after_the_layers(recorded: Recorded, model: Model, prefix: str) -> Iterator[Pair]:
    arrays, real, c = recorded.arrays, model.conditions.law.real, model.config
    last = arrays.get(f"{prefix}prefill.layer{c.n_layers - 1}", arrays.get(f"{prefix}trunk.h"))
    got: Arrays = {}
    if last is not None:
        got["prefill.logits"] = trunk_logits(model, last[-1:].astype(real))[0]
    targets = [arrays.get(f"{prefix}prefill.layer{n}") for n in c.dspark_target_layer_ids]
    known = [t.astype(real) for t in targets if t is not None]
    if known and len(known) == len(targets):
        got["prefill.main_hidden"] = np.concatenate([tap(model, t) for t in known], axis=1)
    if model.weights.nextn is not None and last is not None:
        got["mtp.logits"] = nextn_forward(model, last, recorded.ids)[-1]
    taps = [arrays.get(f"{prefix}{when}.main_hidden") for when in ("prefill", "decode")]
    seen = [t for t in taps if t is not None]
    if model.weights.drafter is not None and len(seen) == 2:
        rings = new_drafter_cache(model)
        ingest(model, rings, np.concatenate(seen).astype(real))
        got |= {f"cache.mtp{k}.kv": ring for k, ring in enumerate(rings.rings)}
    yield from _recorded_pairs(recorded, got, prefix)


def _compressed(
    recorded: Recorded, model: Model, layer: int, normed: np.ndarray, prefix: str
) -> Iterator[Pair]:
    """The compressed rows and index keys of the blocks that the prompt completes."""
    c = model.config
    ratio = c.compress_ratios[layer]
    blocks = len(normed) // ratio if ratio else 0
    if not blocks:
        return
    cache = new_layer_cache(c, ratio, len(normed), model.conditions.law.real)
    a = model.weights.blocks[layer].attention
    attention_step(model.conditions, a, normed, cache, 0)
    for kind, part, start in (
        ("kv", cache.compressed, c.window_size),
        ("index_kv", cache.index, 0),
    ):
        want = recorded.arrays.get(f"{prefix}cache.layer{layer}.{kind}")
        if part is not None and want is not None:
            name = f"{prefix}cache.layer{layer}.{kind}[prompt's blocks]"
            yield Pair(name, part.store[:blocks], want[start : start + blocks])


def _first_step(
    recorded: Recorded, model: Model, layer: int, state: np.ndarray, prefix: str
) -> Iterator[Pair]:
    """The first decode step, whose history is recorded in full."""
    prompt, ids = recorded.prompt, recorded.ids
    name = f"{prefix}decode{prompt}.layer"
    if f"{name}{layer}" not in recorded.arrays:
        return
    if layer == 0:
        newest = entry_state(model, ids[prompt : prompt + 1])
    elif f"{name}{layer - 1}" in recorded.arrays:
        newest = recorded.arrays[f"{name}{layer - 1}"]
    else:
        return
    got = run_layer(model, layer, np.concatenate([state, newest]), ids[: prompt + 1])[-1:]
    yield Pair(f"{name}{layer}", got, recorded.arrays[f"{name}{layer}"])


def _input_of(recorded: Recorded, model: Model, layer: int, prefix: str) -> np.ndarray | None:
    if layer == 0:
        return entry_state(model, recorded.ids[: recorded.prompt])
    return recorded.arrays.get(f"{prefix}prefill.layer{layer - 1}")


def _recorded_pairs(recorded: Recorded, got: Arrays, prefix: str) -> Iterator[Pair]:
    for name, value in got.items():
        if prefix + name in recorded.arrays:
            yield Pair(prefix + name, value, recorded.arrays[prefix + name])


def _caches(cache: TrunkCache, rings: DrafterCache | None) -> Arrays:
    got: Arrays = {}
    for number, layer in enumerate(cache.layers):
        got |= _layer_caches(f"cache.layer{number}.", layer)
    for number, ring in enumerate(rings.rings if rings is not None else ()):
        got[f"cache.mtp{number}.kv"] = ring
    return got


def _layer_caches(at: str, layer: LayerCache) -> Arrays:
    store = [layer.compressed.store] if layer.compressed is not None else []
    got = {f"{at}kv": np.concatenate([layer.ring, *store])}
    if layer.index is not None:
        got[f"{at}index_kv"] = layer.index.store
    return got


def _into(got: Arrays, at: str) -> Probe:
    """A probe that keeps everything under its name with `at` in front."""

    def keep(name: str, value: np.ndarray) -> None:
        got[at + name] = value

    return keep
