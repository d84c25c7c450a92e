"""The torch model is the oracle's model: the same weights give the same numbers.

Measured relative to the largest magnitude of each output. Under SMOOTH both are float64 throughout
and differ by the order of sums alone; under ENGINE a quantiser code may flip where a value lies
within such a difference of a step, so the bound holds as long as none does on these inputs.
"""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

import numpy as np
import pytest

from dsv4.checkpoint.config import read_config
from oracle.drafter import draft as oracle_draft
from oracle.drafter import ingest, new_drafter_cache
from oracle.laws import LAWS
from oracle.trunk import build_model
from oracle.trunk import forward as oracle_forward
from tests.goldens import golden, golden_folder

torch = pytest.importorskip("torch", reason="the extra `train` (torch) is not installed")

from tools.train import drafter, laws, trunk  # noqa: E402
from tools.train.parameters import prepared  # noqa: E402
from tools.train.stored import decoded  # noqa: E402

RATIOS = {"fine and coarse": (0, 4, 8, 4, 0, 0), "coarse as published": (0, 4, 128, 4, 0, 0)}


class Case(NamedTuple):
    """Torch and oracle models of one checkpoint under one law."""

    torch_model: trunk.Model
    oracle_model: object
    tokens: np.ndarray


@functools.lru_cache(maxsize=4)
def case(ratios: str, law: str) -> Case:
    recorded = golden("tiny-s")
    content = json.loads((golden_folder("tiny-s") / "config.json").read_text(encoding="utf-8"))
    content |= {"compress_ratios": list(RATIOS[ratios]), "max_position_embeddings": 300}
    tensors = dict(recorded.tensors)
    if 128 in RATIOS[ratios]:
        ape = np.random.default_rng(5).normal(0, 0.5, (128, 128)).astype(np.float32)
        tensors["layers.2.attn.compressor.ape"] = ("F32", ape)
    config = read_config(content)
    import dataclasses

    theirs = dataclasses.replace(
        recorded.config, compress_ratios=RATIOS[ratios], max_seq_len=300
    )
    weights = decoded(config, lambda name: tensors[name])
    own = getattr(laws, law)(torch.float64)
    with torch.no_grad():
        model = trunk.model_of(config, prepared(weights, config, own), own)
    length = 150 if 128 in RATIOS[ratios] else 61
    tokens = np.random.default_rng(3).integers(0, 256, length)
    return Case(model, build_model(theirs, tensors, LAWS[law], 300), tokens)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference over the largest magnitude."""
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("law", "bound"), [("smooth", 1e-9), ("engine", 1e-9)])
@pytest.mark.parametrize("ratios", RATIOS)
def test_trunk_says_what_the_oracle_says(ratios: str, law: str, bound: float) -> None:
    it = case(ratios, law)
    want = oracle_forward(it.oracle_model, it.tokens)
    with torch.no_grad():
        got = trunk.forward(it.torch_model, torch.from_numpy(it.tokens)[None])
    print(relative(got.logits[0].numpy(), want.logits),relative(got.taps[0].numpy(), want.taps))
    assert relative(got.logits[0].numpy(), want.logits) <= bound
    assert relative(got.taps[0].numpy(), want.taps) <= bound


@pytest.mark.parametrize(("law", "bound"), [("smooth", 1e-9), ("engine", 1e-9)])
@pytest.mark.parametrize("anchor", [0, 5, 7, 8, 40])
def test_drafter_proposes_what_the_oracle_proposes(anchor: int, law: str, bound: float) -> None:
    it = case("fine and coarse", law)
    taps = oracle_forward(it.oracle_model, it.tokens).taps
    cache = new_drafter_cache(it.oracle_model)
    ingest(it.oracle_model, cache, taps[: anchor + 1])
    want = oracle_draft(it.oracle_model, cache, 17)
    with torch.no_grad():
        tokens, logits, confidence = drafter.greedy(
            it.torch_model, torch.from_numpy(taps)[None], torch.tensor([[anchor]]), torch.tensor([[17]])
        )
    print(relative(logits[0, 0].numpy(), want.logits))
    assert tokens[0, 0].tolist() == want.tokens.tolist()
    assert relative(logits[0, 0].numpy(), want.logits) <= bound
    assert relative(confidence[0, 0].numpy(), want.confidence) <= bound
