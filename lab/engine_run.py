"""What the engine says about a recorded folder, under the names of the recorded outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsv4.engine.capture import Capture
from dsv4.engine.draft import DsparkCapture
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal
from lab.oracle_run import Arrays, Pair
from lab.recorded import Recorded

SWITCHES: dict[str, dict[str, str]] = {
    "smooth": {"quantisers": "off"},
    "engine": {},
    "ref": {"dense_input": "fp8"},
}
"""What the engine is loaded with to come closest to a law; none but SMOOTH is the law itself."""


def load_for(recorded: Recorded, law: str, *, backend: str, **switches: str | None) -> Engine:
    """The engine of a recorded folder with the arms of a law, long enough for its ids.

    Errors: Refusal for a law that the engine has no arms for, and as `Engine.load`.
    """
    if law not in SWITCHES:
        raise Refusal(
            f"the engine was asked for the law {law}\n  it has arms for {', '.join(SWITCHES)}\n"
            "  in lab.engine_run\n  choose one of these, or --subject oracle"
        )
    drafter = "dspark" if any("spec." in name for name in recorded.arrays) else None
    arms = resolve_arms(**{"drafter": drafter, **SWITCHES[law], **switches})
    return Engine.load(recorded.folder, backend=backend, max_seq=len(recorded.ids), arms=arms)


def engine_outputs(recorded: Recorded, engine: Engine) -> Arrays:
    """Every output from the ids alone: prefill, decode steps with a draft each, final caches."""
    config, last = recorded.config, engine.last
    if engine.mtp is not None:
        out = engine.forward(recorded.ids)
        assert out is not None
        return {
            "trunk.h": last.device.to_numpy(out.h_last),
            "prefill.logits": out.logits,
            "mtp.logits": engine.mtp_logits_last(out.h_last, recorded.ids),
        }
    prompt, ids = recorded.prompt, recorded.ids
    capture, state = Capture(), engine.alloc_decode_state()
    got: Arrays = {}
    out = engine.prefill_with_cache(ids[:prompt], state, capture=capture)
    for layer in range(config.n_layers):
        got[f"prefill.layer{layer}"] = capture.layer_out[layer]
        for name, held in (
            ("attn_norm", capture.x_dbg),
            ("attn", capture.attn_out),
            ("ffn_norm", capture.moe_x),
            ("ffn", capture.moe_out),
        ):
            got[f"prefill.sub.{layer}.{name}"] = held[layer]
    got["prefill.logits"] = out.logits
    targets = [capture.layer_out[n].mean(axis=1) for n in config.dspark_target_layer_ids]
    if targets:
        got["prefill.main_hidden"] = np.concatenate(targets, axis=1)
    if engine.dspark is not None and engine.arms.decode_path.on_device:
        got |= _drafted(engine, state, recorded, got["prefill.main_hidden"])
    else:
        rows = [engine.decode_step(int(token), state) for token in ids[prompt:]]
        if rows:
            got["decode.logits"] = np.stack(rows)
    return got | _caches(engine, state, recorded)


def _drafted(
    engine: Engine, state: DecodeState, recorded: Recorded, main_hidden: np.ndarray
) -> Arrays:
    """Steps that the drafter follows: logits, taps, and a draft behind each step's own token."""
    dstate, device = engine.dspark_alloc_state(), engine.last.device
    hidden = device.to_device(main_hidden.astype(np.float32))
    engine.dspark_prime_prefill(dstate, hidden, recorded.prompt)
    found: dict[str, list[np.ndarray]] = {}
    for token in recorded.ids[recorded.prompt :]:
        row = engine.decode_step_tap(int(token), state, dstate.taps, 0)
        engine.dspark_write_rings(dstate, 0, state.pos - 1)
        capture = DsparkCapture()
        made = engine.dspark_forward_spec(dstate, int(row.argmax()), 0, state.pos - 1, capture)
        assert capture.main_hidden is not None and capture.logits_post is not None
        for name, value in (
            ("decode.logits", row),
            ("decode.main_hidden", capture.main_hidden),
            ("spec.out_ids", made.out_ids),
            ("spec.logits", capture.logits_post),
            ("spec.confidence", made.confidence),
        ):
            found.setdefault(name, []).append(value)
    got = {name: np.stack(values) for name, values in found.items()}
    rings = engine.dspark_ring_classes(dstate)
    return got | {f"cache.mtp{k}.kv": ring for k, (_, ring) in enumerate(rings)}


def _caches(engine: Engine, state: DecodeState, recorded: Recorded) -> Arrays:
    """The final caches as recorded: the ring, then as many compressed rows as positions allow."""
    live = dict(engine.cache_classes(state))
    got: Arrays = {}
    for layer in range(recorded.config.n_layers):
        at = f"l{layer}."
        names = {"kv": (f"{at}ring", f"{at}cmp_store"), "index_kv": (f"{at}idx_store",)}
        for kind, parts in names.items():
            name = f"cache.layer{layer}.{kind}"
            want = recorded.arrays.get(name, recorded.arrays.get(f"smooth.{name}"))
            held = [live[part] for part in parts if part in live]
            if want is None or not held:
                continue
            rows = np.concatenate(held)
            padded = np.zeros(want.shape, rows.dtype)
            padded[: len(rows)] = rows[: len(padded)]
            got[name] = padded
    return got


def engine_pairs(recorded: Recorded, engine: Engine, prefix: str) -> Iterator[Pair]:
    """Each layer from its recorded input, and its sub-blocks where they are recorded."""
    arrays, prompt = recorded.arrays, recorded.prompt
    ids = recorded.ids[:prompt]
    for layer in range(1, recorded.config.n_layers):
        before = arrays.get(f"{prefix}prefill.layer{layer - 1}")
        if before is None or f"{prefix}prefill.layer{layer}" not in arrays:
            continue
        seen = engine.run_layer(layer, before, ids)
        got = {f"prefill.layer{layer}": seen.layer_out[layer]}
        for name, held in (
            ("attn_norm", seen.x_dbg),
            ("attn", seen.attn_out),
            ("ffn_norm", seen.moe_x),
            ("ffn", seen.moe_out),
        ):
            got[f"prefill.sub.{layer}.{name}"] = held[layer]
        for name, value in got.items():
            if prefix + name in arrays:
                yield Pair(prefix + name, value, arrays[prefix + name])
