"""The engine without quantisers against recorded outputs of another implementation."""

from __future__ import annotations

import numpy as np
import pytest

from lab.model_diff import ENGINE_BOUND, model_diff
from tests.engine.engines import tiny_engine
from tests.goldens import golden, golden_folder

PATHS = ("device", "device-hostmath", "legacy")


@pytest.mark.parametrize("path", PATHS)
def test_prefill_and_every_step_meet_the_committed_outputs(path: str) -> None:
    report = model_diff(
        golden_folder("tiny-s"), subject="engine", backend="host", switches={"decode_path": path}
    )
    names = {c.name for c in report.checks}
    assert {"smooth.prefill.logits", "smooth.decode.logits", "smooth.prefill.layer3"} <= names
    assert not report.broken
    # The legacy path has no tapped steps, so nothing is drafted there.
    wanted = 25 if path == "legacy" else 97
    assert ("smooth.spec.confidence" in names) == (path != "legacy")
    assert report.tokens.agree == report.tokens.compared == wanted


@pytest.mark.parametrize("name", ["tiny-a", "tiny-nextn"])
def test_other_recorded_folders_are_met_too(name: str) -> None:
    report = model_diff(golden_folder(name), subject="engine", backend="host")
    assert report.checks and not report.broken


@pytest.mark.stress
def test_a_long_run_is_met_at_every_step() -> None:
    report = model_diff(golden_folder("tiny-long"), subject="engine", backend="host")
    assert report.checks and not report.broken


@pytest.mark.parametrize("pieces", [(1, 20), (7, 14), (20, 1)], ids=str)
def test_a_prompt_in_pieces_gives_the_recorded_logits(pieces: tuple[int, int]) -> None:
    recorded = golden("tiny-s")
    engine = tiny_engine(quantisers="off")
    state, at = engine.alloc_decode_state(), 0
    for size in pieces:
        out = engine.prefill_with_cache(recorded.ids[at : at + size], state)
        at += size
    want = recorded.arrays["smooth.prefill.logits"]
    assert np.abs(out.logits - want).max() <= ENGINE_BOUND * np.abs(want).max()


def test_the_next_token_block_is_captured_under_the_number_after_the_trunk() -> None:
    from dsv4.engine.capture import Capture

    recorded = golden("tiny-nextn")
    engine = tiny_engine(folder="tiny-nextn", quantisers="off")
    streams = recorded.arrays["smooth.trunk.h"].astype(np.float32)
    capture = Capture(want={engine.config.n_layers})
    logits = engine.mtp_logits_last(engine.last.device.to_device(streams), recorded.ids, capture)
    want = recorded.arrays["smooth.mtp.logits"]
    assert np.abs(logits - want).max() <= ENGINE_BOUND * np.abs(want).max()
    assert set(capture.moe_x) == {engine.config.n_layers}
    assert capture.moe_x[engine.config.n_layers].shape == streams.shape[::2]
