"""Made checkpoints run through the float64 model: nothing vanishes, explodes or saturates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.checkpoint.published import LAYOUTS
from dsv4.checkpoint.reader import Checkpoint
from dsv4.runtime.hostdevice import HostDevice
from oracle.config import read_config
from oracle.drafter import draft, ingest, new_drafter_cache
from oracle.laws import LAWS
from oracle.nextn import nextn_forward
from oracle.trunk import Model, Output, build_model, forward
from tests.checkpoint.conftest import Minted

IDS = np.random.default_rng(0).integers(0, 512, 45)


def model_of(folder: Path, law: str) -> Model:
    stored = Checkpoint.open(folder)
    tensors = {name: (stored.entry(name).dtype, stored.tensor(name)) for name in stored}
    return build_model(read_config(stored.config()[0]), tensors, LAWS[law])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def run(model: Model) -> tuple[Output, dict[str, float]]:
    sizes: dict[str, float] = {}
    return forward(model, IDS, lambda name, x: sizes.update({name: rms(x)})), sizes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("law", ["smooth", "exact"])
def test_activations_of_every_layout_stay_near_one(layout: str, law: str, minted: Minted) -> None:
    model = model_of(minted(layout), law)
    out, sizes = run(model)
    assert len(sizes) == 5 * 5
    assert all(0.05 < size < 10 for size in sizes.values()), sizes
    assert 0.5 < rms(out.logits) < 2
    # Positions differ: no row has forgotten its token.
    assert np.abs(np.corrcoef(out.logits)[np.triu_indices(len(IDS), 1)]).max() < 0.9


def test_experts_of_both_formats_compute_the_same(minted: Minted) -> None:
    (first, _), (second, _) = (run(model_of(minted(n), "exact")) for n in ("nextn", "nvfp4"))
    assert np.array_equal(first.logits, second.logits)


@pytest.mark.parametrize("layout", ["nextn", "nvfp4"])
def test_the_next_token_block_speaks_about_the_token_after(layout: str, minted: Minted) -> None:
    model = model_of(minted(layout), "smooth")
    out, _ = run(model)
    logits = nextn_forward(model, out.state[:-1], IDS[1:])
    assert logits.shape == (len(IDS) - 1, 512)
    assert 0.5 < rms(logits) < 2


@pytest.mark.parametrize("layout", ["0731", "0731-nvfp4"])
def test_the_drafter_proposes_and_doubts(layout: str, minted: Minted) -> None:
    model = model_of(minted(layout), "smooth")
    out, _ = run(model)
    assert 0.3 < rms(out.taps) < 10
    cache = new_drafter_cache(model)
    ingest(model, cache, out.taps)
    stages: dict[str, float] = {}
    proposal = draft(
        model, cache, int(out.logits[-1].argmax()), lambda n, x: stages.update({n: rms(x)})
    )
    assert len(stages) == 3 and all(0.3 < size < 10 for size in stages.values())
    assert 0.5 < rms(proposal.logits) < 4
    assert 0.01 < rms(proposal.confidence) < 5


def test_every_expert_and_every_choice_of_the_router_is_met(minted: Minted) -> None:
    # Gates and biases leave no expert idle, so that each matrix has a part in the output.
    model = model_of(minted("official"), "smooth")
    for block in model.weights.blocks[2:]:
        assert block.moe.bias is not None
        x = np.random.default_rng(1).standard_normal((400, 256))
        scores = np.sqrt(np.log1p(np.exp(x @ block.moe.gate.values.T))) + block.moe.bias
        chosen = np.argsort(-scores, axis=1)[:, :2]
        assert np.bincount(chosen.reshape(-1), minlength=8).min() > 0
    for block in model.weights.blocks[:2]:
        assert block.moe.table is not None
        assert np.bincount(block.moe.table.reshape(-1), minlength=8).min() > 80


@pytest.mark.parametrize("seed", [0, 11])
def test_the_small_size_is_as_healthy(seed: int, tmp_path: Path) -> None:
    plan = plan_mint("small", "official", seed=seed, experts=8)
    write_checkpoint(plan, tmp_path / "small", device=HostDevice())
    out, sizes = run(model_of(tmp_path / "small", "smooth"))
    assert all(0.05 < size < 10 for size in sizes.values()), sizes
    assert 0.5 < rms(out.logits) < 2
