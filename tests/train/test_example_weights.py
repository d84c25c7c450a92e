"""The example's weights: torch says what the oracle says of them, and both layouts hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsv4.checkpoint.census import open_artifact
from lab.debug.subjects import open_model
from lab.demo import EXAMPLE, PROMPT
from oracle.drafter import draft as oracle_draft
from oracle.drafter import ingest, new_drafter_cache
from oracle.trunk import forward as oracle_forward

torch = pytest.importorskip("torch", reason="training needs torch: pip install dsv4-lab[train]")

from tools.train import drafter, laws, trunk  # noqa: E402
from tools.train.parameters import prepared  # noqa: E402
from tools.train.run import exported  # noqa: E402
from tools.train.stored import read_weights  # noqa: E402

BOUND = 1e-9
TOKENS = np.array([256, *PROMPT.encode(), *b"        return len(self.items)\n"])


def relative(got: torch.Tensor, want: np.ndarray) -> float:
    """The largest difference over the largest magnitude."""
    assert got.shape == want.shape
    return float(np.abs(got.numpy() - want).max() / np.abs(want).max())


@pytest.mark.parametrize("law", ["smooth", "engine"])
def test_torch_and_the_oracle_agree_on_trained_weights(law: str) -> None:
    own = getattr(laws, law)(torch.float64)
    config, stored = read_weights(EXAMPLE)
    theirs = open_model(EXAMPLE, law)
    with torch.no_grad():
        ours = trunk.model_of(config, prepared(stored, config, own), own)
        got = trunk.forward(ours, torch.from_numpy(TOKENS)[None])
    want = oracle_forward(theirs, TOKENS)
    assert relative(got.logits[0], want.logits) <= BOUND
    assert relative(got.taps[0], want.taps) <= BOUND
    anchor, first = len(TOKENS) - 20, int(want.logits[len(TOKENS) - 20].argmax())
    with torch.no_grad():
        tokens, logits, confidence = drafter.greedy(
            ours, torch.from_numpy(want.taps)[None], torch.tensor([[anchor]]),
            torch.tensor([[first]]),
        )  # fmt: skip
    cache = new_drafter_cache(theirs)
    ingest(theirs, cache, want.taps[: anchor + 1])
    drafted = oracle_draft(theirs, cache, first)
    assert tokens[0, 0].tolist() == drafted.tokens.tolist()
    assert relative(logits[0, 0], drafted.logits) <= BOUND
    assert relative(confidence[0, 0], drafted.confidence) <= BOUND


def test_one_command_writes_the_same_numbers_as_nvfp4(tmp_path: Path) -> None:
    out = tmp_path / "nvfp4"
    exported(EXAMPLE, out, "0731-nvfp4")
    layout = open_artifact(out).census.layout
    assert layout.nvfp4 and not open_artifact(EXAMPLE).census.layout.nvfp4
    assert sum(f.stat().st_size for f in out.iterdir()) <= 12_000_000
    (_, here), (_, there) = read_weights(EXAMPLE), read_weights(out)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)
