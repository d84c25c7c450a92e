"""Hash tables: which experts a token takes in the first layers, balanced over a corpus."""

from __future__ import annotations

import numpy as np
import torch

from dsv4.checkpoint.config import ModelConfig


def hash_tables(c: ModelConfig, stream: np.ndarray, seed: int) -> dict[str, torch.Tensor]:
    """The table [V,A] of every hash-routed layer.

    Tokens in falling order of how often they occur take the experts that have least to do so far;
    among equally busy ones chance decides, so that layers differ.
    """
    counts = np.bincount(stream, minlength=c.vocab_size)[: c.vocab_size]
    found = {}
    for layer in range(c.n_hash_layers):
        rng = np.random.default_rng((seed, layer))
        load = rng.random(c.n_routed_experts)
        table = np.empty((c.vocab_size, c.n_activated_experts), np.int64)
        for token in np.argsort(-counts, kind="stable"):
            # Chance of the size of a token's own weight keeps neighbours from always meeting.
            jitter = rng.random(c.n_routed_experts) * (counts[token] + 1)
            ids = np.argsort(load + jitter, kind="stable")[: c.n_activated_experts]
            load[ids] += counts[token]
            table[token] = ids
        found[f"layers.{layer}.ffn.gate.tid2eid"] = torch.from_numpy(table)
    return found
