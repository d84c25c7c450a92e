"""What the float64 models give for the inputs of a recorded folder, under the recorded names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsv4.errors import Refusal
from lab.drafter_recorded import DrafterRecord, Part
from oracle.dflash import build_backbone
from oracle.draft_config import DraftConfig, read_draft_config
from oracle.draft_heads import confidence, markov_chain, scaled_logits, select
from oracle.qwen3 import Tensors
from oracle.qwen_target import Cache, QwenTarget, build_target

Outputs = dict[str, np.ndarray]
STATES_AFTER = (1, 2, 8)
"""Decode steps after which the states of linear layers are recorded."""


def target_outputs(record: DrafterRecord) -> Outputs:
    """Prefill, greedy decode, and the states of linear layers."""
    part = present(record, record.target)
    target = build_target(part.content, part.tensors)
    prompt = record.arrays["input.prompt_ids"]
    steps = len(record.arrays["greedy.ids"])
    cache = target.new_cache(len(prompt) + steps)
    done = target.forward(prompt, cache)
    out: Outputs = {"prefill.hidden.embed": done.embed, "prefill.hidden.final_norm": done.final}
    out |= {f"prefill.hidden.layer{i}": x for i, x in enumerate(done.layers)}
    out["prefill.logits"] = target.head(done.final)
    for i, routing in done.routing.items():
        at = f"prefill.router.layer{i}"
        out |= {f"{at}.logits": routing.logits, f"{at}.weights": routing.weights}
        out[f"{at}.experts"] = routing.experts
    out |= _states(target, cache, "prefill")
    return out | _greedy(target, cache, out["prefill.logits"][-1], steps)


def _greedy(target: QwenTarget, cache: Cache, row: np.ndarray, steps: int) -> Outputs:
    rows, ids, passes = [row], [int(np.argmax(row))], []
    out: Outputs = {}
    for step in range(1, steps):
        done = target.forward([ids[-1]], cache)
        passes.append(done)
        rows.append(target.head(done.final)[0])
        ids.append(int(np.argmax(rows[-1])))
        if step in STATES_AFTER:
            out |= _states(target, cache, f"decode{step}")
    at = "decode.hidden"
    out |= {"greedy.logits": np.array(rows), "greedy.ids": np.array(ids)}
    out[f"{at}.embed"] = np.concatenate([p.embed for p in passes])
    out[f"{at}.final_norm"] = np.concatenate([p.final for p in passes])
    for i in range(target.n_layers):
        out[f"{at}.layer{i}"] = np.concatenate([p.layers[i] for p in passes])
    return out


def _states(target: QwenTarget, cache: Cache, when: str) -> Outputs:
    """States as recorded; the oldest recorded convolution input has no part in later steps."""
    out = {f"state.{when}.layer{i}.recurrent": s.copy() for i, s in cache.recurrent.items()}
    return out | {f"state.{when}.layer{i}.conv": s.copy() for i, s in cache.conv.items()}


def drafter_outputs(record: DrafterRecord, rule: str = "seed") -> Outputs:
    """Every round of a drafter: features, layers, logits, proposals, and the cache at the end."""
    part = present(record, record.drafter)
    config, w = read_draft_config(part.content), Tensors(part.tensors)
    embedding, head = embedding_and_head(record, w)
    ends = [int(e) for e in record.arrays["input.round_context_end"]]
    backbone = build_backbone(config, w, ends[-1], rule)
    kv, out = backbone.new_kv(ends[-1]), Outputs()
    for number, end in enumerate(ends):
        at = f"round{number}."
        features = backbone.context(record.arrays["input.target_taps"][kv.length : end])
        backbone.ingest(kv, features)
        block = [int(record.arrays["input.ids"][end])] + [config.mask_id] * (config.block - 1)
        noise = embedding[block] * config.embedding_scale
        rows = backbone.block(kv, noise, _into(out, at))
        out |= {f"{at}ctx_features": features, f"{at}noise_embedding": noise}
        out |= {f"{at}block_hidden": rows, f"{at}block_ids": np.array(block)}
        rows = rows[config.first_row :]
        logits = scaled_logits(config, rows @ head.T)
        thresholds = record.arrays.get("input.confidence_thresholds")
        out |= {at + n: v for n, v in _proposal(config, w, logits, rows, block[0]).items()}
        if thresholds is not None and f"{at}confidence" in out:
            out[f"{at}confident_prefix_length"] = prefixes(out[f"{at}confidence"], thresholds)
    for i in range(config.layers):
        for name, stored in (("k", kv.k[i]), ("v", kv.v[i])):
            out[f"final_cache.layer{i}.{name}"] = stored[: kv.length].transpose(1, 0, 2)
    return out


def _proposal(
    config: DraftConfig, w: Tensors, logits: np.ndarray, rows: np.ndarray, anchor: int
) -> Outputs:
    if config.dynamic:
        walk = select(config, w, logits, rows, anchor)
        return {
            "logits": logits,
            "selector_hidden": walk.hidden,
            "candidate_logits": walk.values,
            "candidate_ids": walk.ids,
            "walk_scores": walk.scores,
            "path_index": walk.path,
            "proposal_ids": walk.tokens,
        }
    chain = markov_chain(config, w, logits, rows, anchor)
    out = {"proposal_ids": chain.tokens}
    if not config.shifted:
        return out | {"logits": logits}
    out |= {"base_logits": logits, "corrected_logits": chain.logits}
    if "confidence_head.proj.weight" in w:
        raw = confidence(w, rows, chain.previous)
        out |= {"confidence_logits": raw, "confidence": 1.0 / (1.0 + np.exp(-raw))}
    return out


def prefixes(probability: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many leading drafts have at least each threshold's confidence."""
    passes = np.cumprod(probability[None, :] >= thresholds[:, None], axis=1)
    return np.asarray(passes.sum(axis=1))


def embedding_and_head(record: DrafterRecord, w: Tensors) -> tuple[np.ndarray, np.ndarray]:
    """The target's two tables: borrowed, or the drafter's own copies."""
    if record.borrowed:
        tables = Tensors(record.borrowed)
        return tables["model.embed_tokens.weight"], tables["lm_head.weight"]
    return w["embed_tokens.weight"], w["lm_head.weight"]


def present(record: DrafterRecord, part: Part | None) -> Part:
    """The checkpoint. Errors: Refusal when the folder has none of that kind."""
    if part is None:
        raise Refusal(f"{record.folder} holds no such checkpoint; it records a {record.kind}")
    return part


def _into(out: Outputs, at: str) -> Callable[[str, np.ndarray], None]:
    def keep(name: str, value: np.ndarray) -> None:
        out[at + name] = value

    return keep
