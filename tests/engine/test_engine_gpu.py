"""The engine on a GPU: the host's laws there, both backends' choices, and models of full width."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.engine.engine import Engine
from dsv4.runtime.hostdevice import HostDevice
from lab import testing
from lab.engine_diff import PART_BOUND, engine_against_oracle
from lab.gates import GATES, bench_of, run_gate
from lab.generation import generate
from lab.model_diff import model_diff
from tests.engine.engines import same_bytes, tokens
from tests.engine.watched import sweep
from tests.goldens import golden_folder

pytestmark = pytest.mark.gpu
FOLDERS = ("tiny-s", "tiny-a", "tiny-long", "tiny-nextn")
LAYOUTS = ("official", "0731", "nextn", "nvfp4", "0731-nvfp4")


@pytest.fixture(autouse=True)
def gpu():
    return testing.cuda()


@pytest.mark.parametrize("path", ["device", "device-hostmath", "legacy"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_recorded_outputs_are_met(folder: str, path: str) -> None:
    switches = {"decode_path": path}
    report = model_diff(golden_folder(folder), subject="engine", backend="cuda", switches=switches)
    assert report.checks and not report.broken


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_part_meets_the_float64_model(folder: str) -> None:
    parts = engine_against_oracle(golden_folder(folder), backend="cuda")
    assert max(p.median for p in parts) <= PART_BOUND


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_meets_the_float64_model(layout: str, tmp_path) -> None:
    write_checkpoint(plan_mint("tiny", layout, seed=3), tmp_path / "m", device=HostDevice())
    parts = engine_against_oracle(tmp_path / "m", backend="cuda", tokens=40)
    assert max(p.median for p in parts) <= PART_BOUND


@pytest.mark.parametrize("name", list(GATES))
def test_every_gate_holds(name: str) -> None:
    bench = bench_of(golden_folder("tiny-s"), backend="cuda", switches={})
    outcome = run_gate(name, bench, red=False)
    assert outcome.passed, outcome.finding.detail


def test_replayed_graphs_give_the_bytes_of_launches() -> None:
    ids, made = tokens(24), []
    ways: list[dict[str, str]] = [
        {},
        {"branches": "on"},
        {"dependent_launch": "on"},
        {"dependent_launch": "off"},
        {"fused": "off"},
        {"fused": "off", "branches": "on"},
        {"graphs": "off"},
        {"graphs": "off", "fused": "off", "dependent_launch": "off"},
    ]
    for switches in ways:
        engine = Engine.load(golden_folder("tiny-s"), backend="cuda", max_seq=40, **switches)
        state = engine.alloc_decode_state()
        engine.prefill_with_cache(ids[:13], state)
        made.append([engine.decode_step(int(t), state) for t in ids[13:]])
    for number, switches in enumerate(ways):
        same = [same_bytes(*pair) for pair in zip(made[number], made[-1], strict=True)]
        assert all(same), f"{switches}: {same}"


def test_both_backends_choose_the_same_tokens() -> None:
    """Products on tensor cores are no portable sums; portable kernels' bytes are compared alone."""
    ids, made = tokens(24), []
    for backend in ("host", "cuda"):
        engine = Engine.load(
            golden_folder("tiny-s"), backend=backend, max_seq=40, prefill_gemm="rows"
        )
        state = engine.alloc_decode_state()
        out = engine.prefill_with_cache(ids[:13], state)
        steps = [engine.decode_step(int(t), state) for t in ids[13:]]
        made.append([int(np.argmax(row)) for row in (out.logits, *steps)])
    assert made[0] == made[1]


def run_full_width(gpu, layers: int, experts: int, stages: int) -> tuple[tuple[int, ...], float]:
    """(64 greedy tokens after 512, bytes taken over bytes counted) of a minted model."""
    plan = plan_mint("flash", "official", layers=layers, experts=experts)
    free, _ = gpu.memory_bytes()
    if plan.size_bytes + (3 << 30) > free:
        pytest.skip(f"{plan.size_bytes / 1e9:.0f} GB of weights, {free / 1e9:.0f} GB free")
    engine = Engine.load(plan, (gpu,) * stages, max_seq=1024)
    prompt = np.random.default_rng(0).integers(0, plan.config.vocab_size, 512).tolist()
    made = generate(engine, prompt, 64)
    used = free - gpu.memory_bytes()[0]
    return made.tokens, used / sum(s.size_bytes for s in engine.placement.stages)


@pytest.mark.stress
@pytest.mark.parametrize(("layers", "experts"), [(6, 16), (20, 256)])
def test_full_width_gives_the_same_tokens_on_one_and_two_stages(gpu, layers, experts) -> None:
    one, two = (run_full_width(gpu, layers, experts, stages)[0] for stages in (1, 2))
    assert one == two and len(one) == 64


@pytest.mark.stress
@pytest.mark.parametrize(("layers", "experts"), [(20, 256), (43, 160)])
def test_the_published_size_runs_and_takes_what_was_counted(gpu, layers, experts) -> None:
    made, share = run_full_width(gpu, layers, experts, 1)
    assert len(made) == 64 and abs(share - 1) <= 0.02


@pytest.mark.stress
@pytest.mark.parametrize(("stages", "lengths"), [(1, (129, 257)), (2, (127,))])
def test_full_width_rounds_are_plain(gpu, stages: int, lengths: tuple[int, ...]) -> None:
    plan = plan_mint("flash", "0731", layers=20, experts=256, agreeing=0.8)
    free, _ = gpu.memory_bytes()
    if plan.size_bytes + (3 << 30) > free:
        pytest.skip(f"{plan.size_bytes / 1e9:.0f} GB of weights, {free / 1e9:.0f} GB free")
    engine = Engine.load(plan, (gpu,) * stages, max_seq=640, drafter="dspark")
    for length in lengths:
        assert sweep(engine, length, 300).run.tokens_per_round > 2
