"""What only a card does, on the host under a card's name: graphs, rotation, roofs, clocks."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4.engine.engine import Engine
from dsv4.errors import ContractError
from lab import run
from lab.bench import clocks, layers, roofs, sampling, steps
from lab.bench.chosen import plan
from lab.bench.kernels import bench_case, copies, open_side
from lab.bench.roofs import Roofs, measure_roofs
from lab.cli import bench_run, bench_text
from lab.cli.main import main
from lab.minted import model_of
from lab.record import nvidia_smi
from lab.report import speed
from lab.result import FAIL, PASS
from tests.bench.pretended import MULTIPROCESSORS, PretendedGpu

MHZ = 1935.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rotations that a CPU can replay."""
    monkeypatch.setattr(sampling, "ROTATION_BYTES", 20_000)
    monkeypatch.setattr(roofs, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(roofs, "_SAMPLES", 3)
    monkeypatch.setattr(roofs, "copy_roof", lambda device: 1e9)
    monkeypatch.setattr(run, "_build_facts", lambda *given: None)
    monkeypatch.setattr(clocks, "_nvml_handle", lambda bus: None)
    monkeypatch.setattr(clocks, "_LAST", {})
    monkeypatch.setattr(clocks, "sm_clock_mhz", lambda bus: MHZ)
    yield


def test_a_case_is_timed_as_a_graph_over_copies_and_told_against_the_roof() -> None:
    spec, case = plan(["cast_bf16"], names=["tail"])[0]
    found, _ = bench_case(
        spec, case, PretendedGpu(), Roofs(1e9, 9e8, 1e-6, "some"), samples=3
    )  # fmt: skip
    document = found[0].to_json()
    # 1542 bytes: 13 copies pass 20,000 bytes, and 10 rotations have at least 128 launches.
    assert document["launches_per_sample"] == 130 and document["time_cold"]
    assert document["verdict"] == PASS and document["read_fraction"] > 0
    assert document["clock"] == {"before_mhz": MHZ, "after_mhz": MHZ, "source": "nvidia-smi"}
    assert document["timing"]["sm_mhz"] == MHZ and "graph replays" in document["timed_by"]


def test_copies_hold_the_same_inputs_in_distinct_memory() -> None:
    spec, case = plan(["cast_bf16"], names=["tail"])[0]
    made = copies(spec, case, PretendedGpu(), 0, 1542)
    inputs = [c.arrays["x"].array for c in made]
    assert len({a.__array_interface__["data"][0] for a in inputs}) == len(made) == 13
    assert all((a == inputs[0]).all() for a in inputs)


def test_every_copy_is_launched_by_the_graph() -> None:
    spec, case = plan(["cast_bf16"], names=["tail"])[0]
    side = open_side(spec, case, PretendedGpu(), {}, 0)
    for copy in side.copies:
        copy.arrays["y"].array[...] = 0
    assert side.again is not None
    side.again.replay()
    outputs = [copy.arrays["y"].bits() for copy in side.copies]
    assert outputs[0].any() and all((y == outputs[0]).all() for y in outputs)


def test_a_graph_that_leaves_other_bytes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.bench import kernels

    spec, case = plan(["cast_bf16"], names=["tail"])[0]
    real = kernels.turn_by_turn

    def scribbling(sides: Any, samples: int) -> Any:
        timings = real(sides, samples)
        opened[0].copies[-1].arrays["y"].array[0] ^= 1
        return timings

    opened: list[kernels.Side] = []
    open_one = kernels.open_side

    def watched(*given: Any) -> Any:
        opened.append(open_one(*given))
        return opened[-1]

    monkeypatch.setattr(kernels, "open_side", watched)
    monkeypatch.setattr(kernels, "turn_by_turn", scribbling)
    found, _ = bench_case(spec, case, PretendedGpu(), None, samples=2)
    assert found[0].verdict == FAIL and found[0].timing is None


def test_the_roof_is_the_best_grid_of_a_stream_that_was_checked() -> None:
    found = measure_roofs(PretendedGpu())
    assert found is not None and found.read > 0 and found.launch_s > 0 and found.copy == 1e9
    blocks = int(found.grid.split()[0])
    assert blocks in {MULTIPROCESSORS * n for n in (1, 2, 3, 4, 6, 8)}


def test_a_stream_that_does_not_read_every_word_gives_no_roof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    real = roofs.run_case

    def broken(*given: Any) -> Any:
        return replace(real(*given), verdict=FAIL, reasons=("y: wrong",))

    monkeypatch.setattr(roofs, "run_case", broken)
    with pytest.raises(ContractError, match="roof_read breaks its contract"):
        measure_roofs(PretendedGpu())


def test_a_slow_clock_is_read_once_between_two_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([1000.0, 1100.0, 1200.0, 1300.0, 1400.0])
    monkeypatch.setattr(clocks, "sm_clock_mhz", lambda bus: next(told))
    device = PretendedGpu()
    found = [clocks.around(device, lambda: 7) for _ in range(2)]
    assert [done for done, _ in found] == [7, 7]
    assert [(c.before_mhz, c.after_mhz) for _, c in found] == [(1000.0, 1100.0), (1100.0, 1200.0)]
    monkeypatch.setattr(clocks, "_STANDS_S", 0.0)
    _, later = clocks.around(device, lambda: 7)
    assert (later.before_mhz, later.after_mhz) == (1300.0, 1400.0)


def test_nvidia_smi_is_asked_for_one_cards_clock_and_told_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {asked}\necho " 1980 "\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    assert nvidia_smi.sm_clock_mhz("0000:00:04.0") == 1980.0
    words = asked.read_text().split()
    assert "--id=0000:00:04.0" in words and "--query-gpu=clocks.sm" in words
    assert all(w.startswith(("--id", "--query-gpu", "--format")) for w in words)


def test_a_machine_without_nvidia_smi_tells_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert nvidia_smi.sm_clock_mhz("0000:00:04.0") is None


@pytest.fixture(scope="module")
def engine() -> Engine:
    plan = model_of("mint:tiny,layers=3")
    return Engine.load(plan, [PretendedGpu()], max_seq=32)


def test_a_step_of_a_card_is_a_graph_and_told_kernel_by_kernel(engine: Engine) -> None:
    found, _ = steps.bench_step(
        [engine], [{}], Roofs(1e9, 9e8, 1e-6, "some"), model="t", context=9, samples=2
    )
    more = found[0].more
    assert found[0].verdict == PASS and more["graph"] and found[0].fraction
    assert sum(k["launches"] for k in more["kernels"]) == more["launches"]
    assert sum(k["size_bytes"] for k in more["kernels"]) == found[0].size_bytes
    assert "lm_head_argmax" in {k["kernel"] for k in more["kernels"]}
    said = bench_text.more_of(found[0])
    assert "% of the time is their floor" in said and "us a launch" in said


def test_layers_of_a_card_are_replayed_until_there_are_many(engine: Engine) -> None:
    found, _ = layers.bench_layers([engine], [{}], None, model="t", context=9, samples=2)
    assert {m.verdict for m in found} == {PASS}
    for measured in found:
        own = len(measured.more["layers"])
        assert measured.launches >= 16 and measured.launches % own == 0


def test_a_document_of_the_command_makes_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_run, "open_device", lambda *given, **more: PretendedGpu())
    made = []
    for words in (
        ["cast_bf16", "movement_mean", "-c", "tail,decode"],
        ["roof_read", "-c", "tail", "--arm", "threads=512", "--against", "threads=256"],
    ):
        with pytest.raises(SystemExit):
            main(["--json", "bench", *words, "--no-record", "--samples", "4"])
        made.append(json.loads(capsys.readouterr().out))
    assert made[0]["roofs"]["read_bytes_per_s"] > 0 and len(made[1]["pairs"]) == 1
    text, picture = speed.page(made)
    assert "| `cast_bf16` | tail N=257 |" in text and "| `roof_read` (threads=256) | tail" in text
    assert "| roof_read tail N=4099 B=3 | threads=512 | threads=256 |" in text
    assert picture.startswith("<svg")
