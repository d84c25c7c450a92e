"""`dsv4-lab bench`: documents, records, exit codes, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bench import kernels
from lab.cli.main import main
from lab.measure.timing import Timing
from lab.record.sides import from_file, from_record
from lab.record.store import Store

RESULT_KEYS = {
    "kernel", "case", "axes", "verdict", "time_s", "time_noise", "time_cold", "timing", "bytes",
    "read_fraction", "clock", "timed_by", "arm", "launches_per_sample", "output_digest",
}  # fmt: skip


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "lab.db"
    monkeypatch.setenv("DSV4_STORE", str(place))
    yield place


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["bench", *map(str, args)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *args, "--json")
    return code, json.loads(out)


def test_kernels_are_timed_recorded_and_told_as_a_cpus(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    code, found = document(capsys, "kernels", "cast_bf16", "--backend", "host")
    (row,) = found["results"]
    assert code == 0 and found["part"] == "kernels" and found["roofs"] is None
    assert set(row) >= RESULT_KEYS and row["case"] == "hidden"
    assert row["read_fraction"] is None and "no measure of a GPU" in row["timed_by"]
    with Store.open_existing(store) as kept:  # type: ignore[union-attr]
        (stored,) = kept.results(found["run"])
        assert stored["kernel"] == "cast_bf16" and stored["time_s"] == row["time_s"]
        assert stored["source_digest"] and kept.samples(stored["id"])


def test_the_word_kernels_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("cast_bf16",), ("--seed", 1, "cast_bf16"), ("--samples", 3, "cast_bf16")):
        code, out, _ = run(capsys, *words, "--backend", "host", "--no-record")
        assert code == 0 and "cast_bf16  hidden" in out and "no measure of a GPU" in out


def test_two_arms_are_compared_and_kept_apart_in_the_store(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    words = ("roof_read", "-c", "tail", "--arm", "threads=512", "--against", "threads=256")
    code, found = document(capsys, *words, "--backend", "host", "--samples", 4)
    (pair,) = found["pairs"]
    assert code in (0, 6) and pair["time"] in ("SAME", "FASTER", "SLOWER", "AMBIGUOUS")
    assert pair["same_bytes"] and (pair["a"], pair["b"]) == ({"threads": 512}, {"threads": 256})
    side = from_record(store, found["run"])
    assert len({e.label for e in side.entries}) == 2
    file = store.with_name("document.json")
    file.write_text(json.dumps(found))
    assert {e.label for e in from_file(file).entries} == {e.label for e in side.entries}


@pytest.mark.parametrize(("share", "code"), [(3.0, 6), (1.0, 0), (0.3, 0)])
def test_a_slower_arm_leaves_with_6(
    share: float, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(sides: Any, samples: int) -> list[Timing]:
        for side in sides:
            side.replay()
        return [Timing((f, f, f), cold=False) for f in (1.0, share)]

    monkeypatch.setattr(kernels, "turn_by_turn", timed)
    words = ("roof_read", "-c", "tail", "--against", "threads=256", "--backend", "host")
    assert run(capsys, *words)[0] == code


def test_a_broken_contract_leaves_with_1_and_has_no_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    real = kernels.run_case
    broken = lambda *given: replace(real(*given), verdict="FAIL", reasons=("y: wrong",))  # noqa: E731
    monkeypatch.setattr(kernels, "run_case", broken)
    code, out, _ = run(capsys, "cast_bf16", "--backend", "host")
    assert code == 1 and "1 without a passing check" in out and "y: wrong" in out


def test_nothing_to_time_leaves_with_8(capsys: pytest.CaptureFixture[str]) -> None:
    # Its declared cases are of full size, and a CPU times the small ones only.
    code, _, err = run(capsys, "swiglu", "--backend", "host")
    assert code == 8 and "-c or -p" in err
    code, _, err = run(capsys, "cast_bf16", "--arm", "threads=256", "--backend", "host")
    assert code == 8


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nothing",), 2, "no kernel matches 'nothing'"),
        (("cast_bf16", "-c", "nothing"), 2, "no case 'nothing'"),
        (("roof_read", "--arm", "threads"), 2, "NAME=NUMBER"),
        (("roof_read", "-c", "tail", "--arm", "threads=300"), 2, "threads=300"),
        (("topk", "--rival", "torch", "--arm", "x=1"), 2, "no --arm with it"),
        (("step", "mint:tiny", "--arm", "speed=high"), 2, "speed"),
        (("step", "mint:tiny", "--rows", "9"), 2, "9"),
    ],
    ids=str,
)
def test_what_cannot_be_timed_is_refused(
    words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left, out, err = run(capsys, *words, "--backend", "host")
    assert left == code and says in err


def test_ctrl_c_keeps_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    seen = []
    real = kernels.bench_case

    def once(*given: Any, **more: Any) -> Any:
        if seen:
            raise KeyboardInterrupt
        seen.append(given)
        return real(*given, **more)

    monkeypatch.setattr(kernels, "bench_case", once)
    code, found = document(capsys, "rms_norm", "--backend", "host", "--samples", 2)
    assert code == 130 and found["summary"]["timed"] == 1
    with Store.open_existing(store) as kept:  # type: ignore[union-attr]
        assert len(kept.results(found["run"])) == 1 and kept.run(found["run"])["finished"]


def test_a_step_is_told_with_its_floor(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    words = ("step", "mint:tiny,layers=2", "--context", 5, "--samples", 2, "--backend", "host")
    code, found = document(capsys, *words, "--against", "branches=on")
    one, two = found["results"]
    assert code in (0, 6) and one["kernel"] == "step" and two["arm"] == {"branches": "on"}
    assert one["position"] == 5 and one["floor_bytes"] > 0 and found["pairs"][0]["same_bytes"]
    with Store.open_existing(store) as kept:  # type: ignore[union-attr]
        cases = {row["case"] for row in kept.results(found["run"])}
    assert cases == {one["case"], f"{one['case']} branches=on"}


def test_people_are_told_rates_and_floors(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--backend", "host", "--no-record")
    _, out, _ = run(capsys, "step", "mint:tiny,layers=2", "--context", 5, *common)
    assert "rows/s" in out and "launches, no less than" in out and "of weights" in out
    words = ("spec", "mint:tiny,layers=2", "--prompt", 5, "-n", 24, "--accept", 1, "--depth", 2)
    _, out, _ = run(capsys, *words, *common)
    assert "tokens a round" in out and "timed by wall clock of the host around whole rounds" in out


def test_layers_and_rounds_have_documents_of_the_same_shape(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ("--backend", "host", "--no-record", "--samples", 2)
    code, found = document(capsys, "layer", "mint:tiny,layers=2", "--context", 5, *common)
    assert code == 0 and {r["kernel"] for r in found["results"]} == {"layer"}
    words = ("spec", "mint:tiny,layers=2", "--prompt", 5, "-n", 24, "--accept", 1, "--depth", 2)
    code, found = document(capsys, *words, *common[:3])
    assert code == 0 and found["results"][0]["tokens_per_s"] > 0 and found["run"] is None


def test_rivals_without_torch_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run(capsys, "topk", "--rival", "torch", "--backend", "host")
    said = err[err.index("error: ") :]
    assert code == 2 and "torch is not installed" in said and said.count("\n") == 1


def test_a_rival_is_told_beside_ours_and_never_changes_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    from lab.bench import rivals
    from tests.bench.test_rivals import fixed

    monkeypatch.setattr(rivals, "load_torch", lambda: None)
    monkeypatch.setattr(rivals, "rivals", lambda: (fixed(right=False),))
    monkeypatch.setattr(rivals, "rivals_of", lambda kernel: [fixed(right=False)])
    words = ("cast_bf16", "-c", "tail", "--rival", "torch", "--backend", "host")
    code, found = document(capsys, *words)
    assert code == 0 and [r["verdict"] for r in found["results"]] == ["PASS", "FAIL"]
    assert found["pairs"][0]["rival"] == "numpy" and found["pairs"][0]["time"] is None
    with Store.open_existing(store) as kept:  # type: ignore[union-attr]
        assert {r["kernel"] for r in kept.results(found["run"])} == {"cast_bf16", "rival: numpy"}


def test_the_report_shows_every_kind_of_timing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    common = ("--backend", "host", "--samples", 2)
    run(capsys, "cast_bf16", *common)
    run(capsys, "layer", "mint:tiny,layers=2", "--context", 5, *common)
    with pytest.raises(SystemExit) as left:
        main(["report", "-o", str(tmp_path / "page.html")])
    assert not left.value.code
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "window only, mint:tiny" in page and "cast_bf16" in page
