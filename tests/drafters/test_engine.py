"""Drafters on a device: chunks, windows, precisions, instruments, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.drafters.backbone import BlockDrafter
from dsv4.drafters.weights import draft_census, load_draft
from dsv4.errors import LaunchError, StateError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.speculation.switches import Switches
from tests.drafters.pairs import FAMILIES, write_drafter
from tests.speculation.refusing import refuses

CONTEXT = 21


def drafter(folder: Path, family: str, **more: Any) -> BlockDrafter:
    more.setdefault("precision", "bf16")
    return load_draft(write_drafter(folder / family, family), HostDevice(), **more)


def inputs(d: BlockDrafter) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    width = len(d.config.target_layer_ids) * d.config.hidden
    taps, noise = (rng.standard_normal(s) for s in ((CONTEXT, width), (4, d.config.hidden)))
    return taps.astype(np.float32), noise.astype(np.float32)


def block(d: BlockDrafter, chunk: int) -> np.ndarray:
    taps, noise = inputs(d)
    kv = d.new_kv(CONTEXT)
    for first in range(0, CONTEXT, chunk):
        rows = taps[first : first + chunk]
        d.ingest_ctx(kv, d.ctx_features(rows), range(first, first + len(rows)))
    return np.asarray(d.forward_round(kv, noise, range(CONTEXT, CONTEXT + 4)))


@pytest.mark.parametrize("family", FAMILIES)
def test_context_in_any_chunks_gives_the_same_bytes(family: str, tmp_path: Path) -> None:
    d = drafter(tmp_path, family)
    taps, noise = inputs(d)
    whole = d.forward(taps, noise, range(CONTEXT + 4))
    for chunk in (1, 3, 256):
        assert block(d, chunk).tobytes() == whole.tobytes()


def test_walking_everything_or_the_window_gives_the_same_bytes(tmp_path: Path) -> None:
    clipped = block(drafter(tmp_path, "dflash2"), 8)
    scanned = block(drafter(tmp_path, "dflash2", switches=Switches(clip=False)), 8)
    assert clipped.tobytes() == scanned.tobytes()


def test_tensor_cores_move_a_block_without_windows_by_bf16_and_no_other(tmp_path: Path) -> None:
    cores = Switches(tensor_cores=True)
    exact, rounded = (
        block(drafter(tmp_path, "dflash"), 8),
        block(drafter(tmp_path, "dflash", switches=cores), 8),
    )
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.02
    cut, same = (
        block(drafter(tmp_path, "dflash2"), 8),
        block(drafter(tmp_path, "dflash2", switches=cores), 8),
    )
    assert cut.tobytes() == same.tobytes()


def test_tensor_cores_are_refused_for_heads_that_they_do_not_take(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", "dflash", head_dim=20)
    with refuses("switch"):
        load_draft(folder, HostDevice(), switches=Switches(tensor_cores=True), precision="bf16")
    lines = draft_census(folder).banner("bf16", "seed", Switches(tensor_cores=True))
    assert "tensor cores" in lines["attention rule"]


@pytest.mark.parametrize("family", FAMILIES)
def test_precisions_move_the_block_a_little_and_each_differently(
    family: str, tmp_path: Path
) -> None:
    blocks = {p: block(drafter(tmp_path, family, precision=p), 8)
              for p in ("bf16", "q8", "q4", "mixed", "fc")}  # fmt: skip
    scale = np.abs(blocks["bf16"]).max()
    error = {p: np.abs(b - blocks["bf16"]).max() / scale for p, b in blocks.items()}
    assert 0 < error["q8"] < 0.1
    assert error["q8"] < error["q4"] < 0.8
    assert 0 < error["mixed"] < 0.1 and 0 < error["fc"] < 0.1
    assert len({b.tobytes() for b in blocks.values()}) == 5


@pytest.mark.parametrize("precision", ["bf16", "q8"])
def test_the_token_bias_reaches_the_logits_and_can_be_switched_off(
    precision: str, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    on = drafter(tmp_path, "dspark", precision=precision)
    off = drafter(tmp_path, "dspark", precision=precision, switches=Switches(markov=False))
    logits = np.zeros((4, 97), np.float32)
    biased = on.chain_greedy(logits.copy(), rows, 5, stash=True)
    plain = off.chain_greedy(logits.copy(), rows, 5, stash=True)
    assert biased.logits.any() and not plain.logits.any()
    assert biased.tokens[0] == plain.tokens[0] == 5
    # Scores need the rows of the chain whether or not the bias is armed.
    assert np.isfinite(off.raw_scores(rows, plain.stash)).all()


def test_rows_out_of_place_are_refused(tmp_path: Path) -> None:
    d = drafter(tmp_path, "dflash")
    taps, noise = inputs(d)
    features = d.ctx_features(taps)
    with refuses("positions-context"):
        d.forward_block(features, noise, range(CONTEXT))
    with refuses("positions-context"):
        d.forward_block(features, noise, [*range(CONTEXT), *range(30, 34)])
    kv = d.new_kv(CONTEXT)
    with refuses("positions-context"):
        d.ingest_ctx(kv, features, range(1, CONTEXT + 1))
    with refuses("positions-block"):
        d.forward_round(kv, noise, range(3))
    with refuses("draft-kv-overflow"):
        d.ingest_ctx(d.new_kv(CONTEXT - 1), features, range(CONTEXT))


def test_heads_that_a_drafter_lacks_are_refused(tmp_path: Path) -> None:
    plain, second = drafter(tmp_path, "dflash"), drafter(tmp_path, "dflash2")
    rows, logits = np.ones((3, 64), np.float32), np.ones((3, 97), np.float32)
    with refuses("not-dflash2"):
        plain.propose_greedy(logits, rows, 0)
    with refuses("confidence-missing"):
        plain.raw_scores(rows, None)
    with refuses("codebook-target"):
        second.propose_greedy(np.ones((3, 98), np.float32), rows, 0)
    with refuses("internal"):
        drafter(tmp_path, "dspark").raw_scores(rows, None)


def test_loading_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    with refuses("precision"):
        drafter(tmp_path, "dflash", precision="q5")
    with refuses("attention-rule"):
        drafter(tmp_path, "dflash", rule="other")
    with refuses("tap-range"):
        drafter(tmp_path, "dflash", target_layers=2)
    with refuses("codebook-target"):
        drafter(tmp_path, "dflash2", target_vocab=98)


def test_the_census_of_a_folder_reads_headers_alone(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", "dspark")
    file = folder / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    file.write_bytes(file.read_bytes()[:header])
    assert draft_census(folder).has_confidence


def test_instruments_leave_raw_arrays_and_rotation_can_be_skipped(tmp_path: Path) -> None:
    dumped = tmp_path / "dump"
    d = drafter(tmp_path, "dflash", switches=Switches(dump=str(dumped)))
    taps, noise = inputs(d)
    whole = d.forward(taps, noise, range(CONTEXT + 4))
    names = {"ctx_features", "l0_q0", "l0_qn", "l0_xn", "l0_q_prerope", "l0_q", "l0_k", "l0_attn",
             "l0_x1", "layer0_out", "layer1_out"}  # fmt: skip
    assert {f.name for f in dumped.iterdir()} == names
    before, after = (np.fromfile(dumped / n, "<f4") for n in ("l0_q_prerope", "l0_q"))
    assert not np.array_equal(before, after)
    still = drafter(tmp_path, "dflash", switches=Switches(no_rope=True))
    assert not np.array_equal(still.forward(taps, noise, range(CONTEXT + 4)), whole)


def test_a_cache_whose_pass_raised_is_dead(tmp_path: Path) -> None:
    d = drafter(tmp_path, "dflash")
    kv = d.new_kv(CONTEXT)
    with pytest.raises(LaunchError, match="must agree"):
        d.ingest_ctx(kv, np.ones((2, 60), np.float32), range(2))
    with pytest.raises(StateError, match="dead"):
        d.ingest_ctx(kv, d.ctx_features(inputs(d)[0][:2]), range(2))
