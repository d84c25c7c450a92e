"""What the engine's targets and drafters give for a recorded folder, under the recorded names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.drafters.backbone import BlockDrafter
from dsv4.drafters.selector import slot_scores
from dsv4.drafters.weights import load_draft
from dsv4.runtime.device import Device
from dsv4.targets.cache import TargetCache
from dsv4.targets.layers import bf16_matrix
from dsv4.targets.load import load_target
from dsv4.targets.qwen3 import QwenTarget
from lab.drafter_outputs import STATES_AFTER, Outputs, prefixes, present
from lab.drafter_recorded import DrafterRecord


def engine_target_outputs(record: DrafterRecord, device: Device) -> Outputs:
    """Prefill, greedy decode, and the states of linear layers."""
    target = load_target(Path(record.folder), device)
    prompt = record.arrays["input.prompt_ids"].tolist()
    steps = len(record.arrays["greedy.ids"])
    cache = target.new_cache(len(prompt) + steps)
    out: Outputs = {}

    def keep(name: str, value: Any) -> None:
        out[f"prefill.{name}"] = _host(device, value)

    final, _ = target.forward(prompt, cache, keep)
    out["prefill.logits"] = _host(device, target.head(final))
    out |= _states(target, cache, "prefill")
    return out | _greedy(target, cache, out["prefill.logits"][-1], steps)


def _greedy(target: QwenTarget, cache: TargetCache, row: np.ndarray, steps: int) -> Outputs:
    device, rows, ids = target.ops.device, [row], [int(np.argmax(row))]
    hidden: dict[str, list[np.ndarray]] = {}
    out: Outputs = {}

    def keep(name: str, value: Any) -> None:
        if name.startswith("hidden."):
            hidden.setdefault(f"decode.{name}", []).append(_host(device, value)[0])

    for step in range(1, steps):
        final, _ = target.forward([ids[-1]], cache, keep)
        rows.append(_host(device, target.head(final))[0])
        ids.append(int(np.argmax(rows[-1])))
        if step in STATES_AFTER:
            out |= _states(target, cache, f"decode{step}")
    out |= {name: np.array(value) for name, value in hidden.items()}
    return out | {"greedy.logits": np.array(rows), "greedy.ids": np.array(ids)}


def _states(target: QwenTarget, cache: TargetCache, when: str) -> Outputs:
    if cache.conv is None or cache.recurrent is None:
        return {}
    device, out = target.ops.device, Outputs()
    conv = _host(device, cache.conv[cache.side])
    recurrent = _host(device, cache.recurrent[cache.side])
    for layer, at in target.linear_index.items():
        out[f"state.{when}.layer{layer}.conv"] = conv[at]
        out[f"state.{when}.layer{layer}.recurrent"] = recurrent[at].transpose(0, 2, 1)
    return out


def engine_drafter_outputs(record: DrafterRecord, device: Device, rule: str = "seed") -> Outputs:
    """Every round of a drafter in bf16 precision, and its cache at the end."""
    part = present(record, record.drafter)
    drafter = load_draft(part.folder, device, precision="bf16", rule=rule)
    c, ops = drafter.config, drafter.ops
    tables = record.borrowed or part.tensors
    embedding, head = (
        next(bits for name, (_, bits) in tables.items() if name.endswith(end))
        for end in ("embed_tokens.weight", "lm_head.weight")
    )
    table, head_matrix = ops.bits(embedding), bf16_matrix(ops, head)
    ends = [int(e) for e in record.arrays["input.round_context_end"]]
    kv, out = drafter.new_kv(ends[-1]), Outputs()
    for number, end in enumerate(ends):
        at = f"round{number}."

        keep = _into(device, out, at)
        taps = ops.vector(record.arrays["input.target_taps"][kv.length : end])
        features = drafter.ctx_features(taps)
        drafter.ingest_ctx(kv, features, range(kv.length, end))
        block = [int(record.arrays["input.ids"][end])] + [c.mask_token_id] * (c.block_size - 1)
        noise = drafter.noise(ops.embed(table, ops.ints(block)), 1.0)
        rows = drafter.forward_round(kv, noise, range(end, end + c.block_size), keep)
        for name, value in (
            ("ctx_features", features),
            ("noise_embedding", noise),
            ("block_hidden", rows),
            ("block_ids", np.array(block)),
        ):
            keep(name, value)
        rows = rows[0 if c.strategy_dspark else 1 :]
        logits = drafter.scaled(ops.head(head_matrix, rows))
        out |= {at + n: v for n, v in _proposal(drafter, logits, rows, block[0]).items()}
        thresholds = record.arrays.get("input.confidence_thresholds")
        if thresholds is not None and f"{at}confidence" in out:
            out[f"{at}confident_prefix_length"] = prefixes(out[f"{at}confidence"], thresholds)
    for i in range(c.n_layer):
        for name, stored in (("k", kv.k[i]), ("v", kv.v[i])):
            committed = _host(device, stored[: kv.length])
            out[f"final_cache.layer{i}.{name}"] = committed.transpose(1, 0, 2)
    return out


def _proposal(drafter: BlockDrafter, logits: Any, rows: Any, anchor: int) -> Outputs:
    device, c = drafter.ops.device, drafter.config
    plain = _host(device, logits)
    if drafter.selector is not None:
        values, ids, hidden = drafter.selector.candidates(drafter.ops, logits, rows)
        tokens = drafter.selector.walk_greedy(values, ids, hidden, anchor)
        scores = np.stack(
            [
                slot_scores(drafter.selector.books, *slot)
                for slot in zip(values, ids, hidden, [anchor, *tokens[:-1]], strict=True)
            ]
        )
        return {
            "logits": plain,
            "selector_hidden": hidden.astype(np.float64),
            "candidate_logits": values.astype(np.float64),
            "candidate_ids": ids.astype(np.int64),
            "walk_scores": scores.astype(np.float64),
            "path_index": np.argmax(ids == tokens[:, None], axis=1),
            "proposal_ids": tokens,
        }
    chain = drafter.chain_greedy(logits, rows, anchor, stash=drafter.wants_stash)
    out: Outputs = {"proposal_ids": drafter.to_host(chain.tokens)[1:].astype(np.int64)}
    if not c.strategy_dspark:
        return out | {"logits": plain}
    out |= {"base_logits": plain, "corrected_logits": _host(device, chain.logits)}
    if drafter.has_confidence:
        raw = drafter.raw_scores(rows, chain.stash).astype(np.float64)
        out |= {"confidence_logits": raw, "confidence": 1.0 / (1.0 + np.exp(-raw))}
    return out


def _into(device: Device, out: Outputs, at: str) -> Callable[[str, Any], None]:
    def keep(name: str, value: Any) -> None:
        out[at + name] = _host(device, value)

    return keep


def _host(device: Device, value: Any) -> np.ndarray:
    """A copy as float64, or the integers as they are."""
    array = value if isinstance(value, np.ndarray) else device.to_numpy(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array.copy()
