"""The torch model is the oracle's model: the same weights give the same numbers.

Differences are relative to the largest magnitude of an output. Under SMOOTH both are float64
throughout and differ by the order of sums alone. Under ENGINE a quantiser's code could flip where
a value lies within such a difference of a step; on these inputs none does, so the bound is that of
SMOOTH.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import NamedTuple

import numpy as np
import pytest

from dsv4.checkpoint.config import read_config
from oracle.drafter import draft as oracle_draft
from oracle.drafter import ingest, new_drafter_cache
from oracle.laws import LAWS
from oracle.trunk import Model, build_model
from oracle.trunk import forward as oracle_forward
from tests.goldens import golden, golden_folder

torch = pytest.importorskip("torch", reason="training needs torch: pip install dsv4-lab[train]")

from tools.train import drafter, laws, trunk  # noqa: E402
from tools.train.parameters import prepared  # noqa: E402
from tools.train.stored import decoded  # noqa: E402

BOUND = 1e-9
POSITIONS = 300
SHORT, LONG = (0, 4, 8, 4, 0, 0), (0, 4, 128, 4, 0, 0)


class Case(NamedTuple):
    """Both models of one checkpoint under one law, and tokens for them."""

    ours: trunk.Model
    theirs: Model
    tokens: np.ndarray


@functools.lru_cache(maxsize=4)
def case(ratios: tuple[int, ...], law: str) -> Case:
    """tiny-s: window 8, top 3 blocks, two drafter stages; with blocks of 128 if ratios say so."""
    recorded = golden("tiny-s")
    content = json.loads((golden_folder("tiny-s") / "config.json").read_text(encoding="utf-8"))
    content |= {"compress_ratios": list(ratios), "max_position_embeddings": POSITIONS}
    tensors = dict(recorded.tensors)
    if 128 in ratios:
        ape = np.random.default_rng(5).normal(0, 0.5, (128, 128)).astype(np.float32)
        tensors["layers.2.attn.compressor.ape"] = ("F32", ape)
    config = read_config(content)
    own = getattr(laws, law)(torch.float64)
    with torch.no_grad():
        weights = prepared(decoded(config, lambda name: tensors[name]), config, own)
    theirs = dataclasses.replace(recorded.config, compress_ratios=ratios, max_seq_len=POSITIONS)
    tokens = np.random.default_rng(3).integers(0, 256, 150 if 128 in ratios else 61)
    return Case(
        trunk.model_of(config, weights, own),
        build_model(theirs, tensors, LAWS[law], POSITIONS),
        tokens,
    )


def relative(got: torch.Tensor, want: np.ndarray) -> float:
    """The largest difference over the largest magnitude."""
    assert got.shape == want.shape
    return float(np.abs(got.numpy() - want).max() / np.abs(want).max())


@pytest.mark.parametrize("law", ["smooth", "engine"])
@pytest.mark.parametrize("ratios", [SHORT, LONG], ids=["blocks of 8", "blocks of 128"])
def test_trunk_says_what_the_oracle_says(ratios: tuple[int, ...], law: str) -> None:
    it = case(ratios, law)
    want = oracle_forward(it.theirs, it.tokens)
    with torch.no_grad():
        got = trunk.forward(it.ours, torch.from_numpy(it.tokens)[None])
    assert relative(got.logits[0], want.logits) <= BOUND
    assert relative(got.taps[0], want.taps) <= BOUND


def test_a_sequence_does_not_see_its_neighbours_in_the_batch() -> None:
    it = case(SHORT, "engine")
    tokens = np.stack([it.tokens, it.tokens[::-1]])
    with torch.no_grad():
        got = trunk.forward(it.ours, torch.from_numpy(tokens))
    for row, ids in enumerate(tokens):
        assert relative(got.logits[row], oracle_forward(it.theirs, ids).logits) <= BOUND


@pytest.mark.parametrize("law", ["smooth", "engine"])
def test_drafter_proposes_what_the_oracle_proposes(law: str) -> None:
    it = case(SHORT, law)
    anchors = [0, 5, 7, 8, 40]
    taps = oracle_forward(it.theirs, it.tokens).taps
    with torch.no_grad():
        tokens, logits, confidence = drafter.greedy(
            it.ours,
            torch.from_numpy(taps)[None],
            torch.tensor([anchors]),
            torch.full((1, len(anchors)), 17),
        )
    for row, anchor in enumerate(anchors):
        cache = new_drafter_cache(it.theirs)
        ingest(it.theirs, cache, taps[: anchor + 1])
        want = oracle_draft(it.theirs, cache, 17)
        assert tokens[0, row].tolist() == want.tokens.tolist()
        assert relative(logits[0, row], want.logits) <= BOUND
        assert relative(confidence[0, row], want.confidence) <= BOUND


def test_given_tokens_and_chosen_ones_lead_to_the_same_drafts() -> None:
    it = case(SHORT, "smooth")
    taps = torch.from_numpy(oracle_forward(it.theirs, it.tokens).taps)[None]
    anchors = torch.tensor([[3, 20]])
    with torch.no_grad():
        chain, logits, confidence = drafter.greedy(it.ours, taps, anchors, torch.tensor([[1, 2]]))
        given = drafter.draft(it.ours, taps, anchors, chain[..., :-1])
    assert torch.allclose(given.logits, logits, rtol=0, atol=1e-12)
    assert torch.allclose(given.confidence, confidence, rtol=0, atol=1e-12)


def test_gradients_reach_every_weight_but_the_selection_bias() -> None:
    it = case(SHORT, "engine")
    weights = {n: w.clone() for n, w in it.ours.weights.items()}
    for name, w in weights.items():
        w.requires_grad_(w.is_floating_point() and not name.endswith("gate.bias"))
    model = dataclasses.replace(it.ours, weights=weights)
    tokens = torch.from_numpy(it.tokens)[None]
    output = trunk.forward(model, tokens)
    anchors = torch.tensor([[9, 30]])
    drafts = drafter.draft(model, output.taps, anchors, tokens[:, 10:15].expand(1, 2, 5)[..., :3])
    total = output.logits.square().mean() + sum(output.index_losses)
    (total + drafts.logits.square().mean() + drafts.confidence.square().mean()).backward()
    still = {n for n, w in weights.items() if w.requires_grad and (w.grad is None)}
    flat = {n for n, w in weights.items() if w.grad is not None and not w.grad.any()}
    assert not still
    assert not flat
