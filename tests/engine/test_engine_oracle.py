"""The engine's arms against the float64 model with the same roundings, part by part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.runtime.hostdevice import HostDevice
from lab.cli.main import main
from lab.engine_diff import PART_BOUND, Part, engine_against_oracle
from tests.engine.engines import tiny_engine, tokens
from tests.goldens import golden_folder

LEGACY = {"decode_path": "legacy"}
ARMS = [
    {},
    {"dots_arm": "f64"},
    {"dots_arm": "f32"},
    {"dense_input": "fp8"},
    {"variant": "clamp-only"},
    {"prefill_gemm": "rows"},
    {"decode_path": "device-hostmath"},
    LEGACY,
    {**LEGACY, "expert_arm": "bf16_dequant"},
    {"quantisers": "off"},
]


@pytest.fixture(scope="module")
def minted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every layout, and a larger one whose two epsilons differ."""
    root, folders = tmp_path_factory.mktemp("minted"), {}
    plans = [("tiny", name) for name in ("official", "0731", "nextn", "nvfp4", "0731-nvfp4")]
    for size, layout in (*plans, ("small", "official")):
        folders[f"{size} {layout}"] = root / f"{size}-{layout}"
        plan = plan_mint(size, layout, seed=3)
        write_checkpoint(plan, folders[f"{size} {layout}"], device=HostDevice())
    return folders


def assert_met(parts: list[Part], *, same: float = 0.8) -> None:
    for part in parts:
        assert part.median <= PART_BOUND, part
        # Flipped codes of keys touch the rows that attend to them; the rest is the same.
        assert part.same_rows >= same, part


@pytest.mark.parametrize("arms", ARMS, ids=str)
def test_every_part_of_the_committed_model_is_met_under_every_arm(arms: dict[str, str]) -> None:
    parts = engine_against_oracle(golden_folder("tiny-s"), backend="host", switches=arms)
    assert len(parts) == 2 + 5 * 4 + 3 + 2
    assert_met(parts, same=0.6)


@pytest.mark.parametrize(
    "made", ["tiny official", "tiny 0731", "tiny nextn", "tiny nvfp4", "tiny 0731-nvfp4"]
)
def test_every_published_layout_is_met(made: str, minted: dict[str, Path]) -> None:
    assert_met(engine_against_oracle(minted[made], backend="host", tokens=40))


def test_one_epsilon_is_not_taken_for_the_other(minted: dict[str, Path]) -> None:
    parts = engine_against_oracle(minted["small official"], backend="host", tokens=30)
    assert max(p.median for p in parts) <= 1e-6


def test_a_wrong_law_is_not_met() -> None:
    from dataclasses import replace

    from lab.engine_diff import engine_diff, law_of
    from oracle.trunk import build_model
    from tests.goldens import golden

    recorded, engine = golden("tiny-s"), tiny_engine()
    law = law_of(engine.arms)
    for wrong in ("product_inputs", "expert_codes", "kv_codes", "index_codes"):
        model = build_model(recorded.config, recorded.tensors, replace(law, **{wrong: False}))
        parts = engine_diff(engine, model, recorded.ids[:21])
        assert max(p.median for p in parts) > PART_BOUND, wrong


@pytest.mark.parametrize("other", [{"decode_path": "device-hostmath"}, LEGACY], ids=str)
def test_host_and_device_choose_the_same_and_agree_in_the_logits(other: dict[str, str]) -> None:
    ids = tokens(24)
    rows = []
    for arms in ({"dots_arm": "f64"}, other):
        engine = tiny_engine(quantisers="off", **arms)
        state = engine.alloc_decode_state()
        engine.prefill_with_cache(ids[:11], state)
        rows.append(np.stack([engine.decode_step(int(t), state) for t in ids[11:]]))
    assert np.abs(rows[0] - rows[1]).max() <= 1e-4 * np.abs(rows[0]).max()
    assert np.array_equal(rows[0].argmax(axis=1), rows[1].argmax(axis=1))


def test_the_command_tells_every_part_and_its_verdict(
    capsys: pytest.CaptureFixture[str], minted: dict[str, Path]
) -> None:
    folder = str(minted["tiny official"])
    command = ["model-diff", folder, "--subject", "engine", "--against", "oracle"]
    with pytest.raises(SystemExit) as left:
        main([*command, "--backend", "host", "--tokens", "20"])
    out = capsys.readouterr().out
    assert left.value.code in (0, None)
    assert "layer4.ffn" in out and "33 parts, 0 with a median row above" in out
