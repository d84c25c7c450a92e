"""The page of speeds says what its documents say, and nothing without one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsv4.errors import Refusal
from lab.bench.floors import step_bytes
from lab.bench.targets import (
    TARGETS,
    cached_row_bytes,
    flash_config,
    index_key_bytes,
    reached,
)
from lab.report import several_cards, speed
from lab.report.roofline import Point, roofline
from lab.report.runs import read_runs

ENV = {
    "device": "NVIDIA H200",
    "backend": "cuda",
    "cuda": {"nvrtc": "13.0"},
    "gpu_settings": {"driver": "580.1"},
    "git": {"commit": "4f1c2ab99"},
    "packages": {"numpy": "2"},
}
ROOF = 4e12
WQ_B = {"M": 1, "N": 32768, "K": 1024}


def result(kernel: str, case: str, time_s: float | None, size: int, **more: Any) -> dict[str, Any]:
    rate = size / time_s / ROOF if time_s else None
    return {
        "kernel": kernel, "family": kernel.partition("_")[0], "case": case, "axes": {}, "arm": {},
        "verdict": "PASS" if time_s else "FAIL", "reasons": [], "time_s": time_s,
        "time_noise": 0.01, "time_cold": True, "bytes": size, "read_fraction": rate,
        "doubt": None, "clock": {"before_mhz": 1980.0, "after_mhz": 1935.0}, "outputs": [], **more,
    }  # fmt: skip


def document(*results: dict[str, Any], part: str = "kernels", **more: Any) -> dict[str, Any]:
    roofs = {"read_bytes_per_s": ROOF, "copy_bytes_per_s": 3.8e12, "launch_s": 1.1e-6,
             "read_grid": "528 blocks"}  # fmt: skip
    return {
        "schema": 1, "command": "bench", "part": part, "env": ENV, "roofs": roofs,
        "results": list(results), "pairs": [], **more,
    }  # fmt: skip


def rows(text: str, start: str) -> list[list[str]]:
    """The cells of every table row that starts so."""
    lines = [li for li in text.splitlines() if li.startswith(f"| {start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_target_that_is_reached_and_one_that_is_not() -> None:
    fast = result("linear_fp8", "wq_b", 8.5e-6, 33_600_000, axes=WQ_B)
    slow = result("hyper_step_open", "decode", 9e-6, 1_750_000)
    text, _ = speed.page([document(fast, slow)])
    (met,) = rows(text, "wq_b, FP8, one row |")
    # 33.6 MB declared at 4 TB/s are 8.4 us: the case's own bytes, within what it was given here.
    assert met[1:2] + met[5:] == [
        "at most 8.8 us, at least 85 % of the roof",
        "8.50 us",
        "99 %",
        "yes",
    ]
    (missed,) = rows(text, "hyper-connection: post")
    assert missed[5] == "9.00 us" and missed[-1] == "no"
    (unknown,) = rows(text, "greedy head")
    assert unknown[5:] == ["-", "-", "not measured"]


def test_parts_of_a_target_are_added_and_all_must_be_there() -> None:
    first = result("experts_mx_gate_up", "experts", 15e-6, 70_000_000, axes={"T": 1})
    second = result("experts_mx_down", "experts", 9e-6, 35_000_000, axes={"T": 1})
    (half,) = rows(speed.page([document(first)])[0], "experts of one row")
    (whole,) = rows(speed.page([document(first, second)])[0], "experts of one row")
    assert half[-1] == "not measured" and whole[5] == "24.00 us" and whole[-1] == "yes"


def test_a_failed_row_reaches_nothing_and_is_not_shown() -> None:
    text, picture = speed.page([document(
        result("linear_fp8", "wq_b", None, 33_600_000, axes=WQ_B),
        result("cast_bf16", "prefill", 1e-5, 50_000_000),
    )])  # fmt: skip
    assert rows(text, "wq_b, FP8, one row |")[0][-1] == "not measured"
    assert not rows(text, "`linear_fp8`") and rows(text, "`cast_bf16`")
    assert "linear_fp8" not in picture and "cast_bf16" in picture


def test_arms_do_not_count_for_targets() -> None:
    armed = result("linear_fp8", "wq_b", 8.5e-6, 33_600_000, axes=WQ_B, arm={"x": 1})
    text, _ = speed.page([document(armed)])
    assert rows(text, "wq_b, FP8, one row |")[0][-1] == "not measured"
    assert rows(text, "`linear_fp8` (x=1)")


def test_eight_rows_are_told_as_times_one() -> None:
    one = result("linear_fp8", "wq_b", 8e-6, 33_600_000, axes=WQ_B)
    eight = result("linear_fp8", "wq_b", 9e-6, 34_000_000, axes={**WQ_B, "M": 8})
    (row,) = rows(speed.page([document(one, eight)])[0], "eight rows of wq_b")
    assert row[1] == "at most 1.15 times one row" and row[5] == "1.125" and row[-1] == "yes"


def test_a_step_is_told_beside_the_floor_of_its_shapes() -> None:
    floor = step_bytes(flash_config())
    step = result(
        "step", "mint:flash,layers=43 context 200 rows 1", 4e-3, 11_500_000_000, family="bench",
        model="mint:flash,layers=43", rows=1, position=200, launches=515, floor_bytes=floor,
    )  # fmt: skip
    text, _ = speed.page([document(step, part="step")])
    plain, stretch = rows(text, "decode step, 43 layers")
    assert (
        plain[1] == "at least 220 tokens/s"
        and plain[5] == "4.000 ms"
        and plain[-1] == "yes"
        and stretch[-1] == "no"
    )
    assert rows(text, "launches of that step")[0][-1] == "yes"
    (told,) = rows(text, "step: mint")
    # 11.22 GB at 4 TB/s are 2.80 ms, 70 % of 4.
    assert told[1:4] == ["515", "11217.6 MB", "2.804 ms"] and told[6:] == ["70 %", "250.0"]


def test_a_step_of_two_cards_says_so_and_reaches_no_target_of_one() -> None:
    shared = result(
        "step", "mint:flash,layers=43 context 200 rows 1", 3e-3, 11_500_000_000, family="bench",
        model="mint:flash,layers=43", rows=1, position=200, launches=1200, cards=2, joins=87,
        join_s=5e-6, floor_bytes=step_bytes(flash_config()), arm={"parallel": "tensor"},
    )  # fmt: skip
    text, _ = speed.page([document(shared, part="step")])
    (told,) = rows(text, "step: mint")
    assert told[0].endswith("(parallel=tensor), 2 cards, 87 joins of 5.00 us")
    # 11.22 GB at twice 4 TB/s are 1.40 ms.
    assert told[3] == "1.402 ms" and told[6:] == ["47 %", "333.3"]
    layers = {**shared, "arm": {}, "joins": 0}
    text, _ = speed.page([document(layers, part="step")])
    assert rows(text, "step: mint")[0][0].endswith("rows 1, 2 cards")
    assert rows(text, "decode step, 43 layers")[0][-1] == "not measured"


def test_rivals_stand_beside_the_kernel_they_were_timed_with() -> None:
    ours = result("linear_fp8", "wq_b", 9e-6, 33_600_000, axes=WQ_B)
    theirs = result("rival: torch.mm bf16", "linear_fp8 wq_b", 18e-6, 67_200_000, axes=WQ_B,
                    family="rival", rival="torch.mm bf16", note="cuBLAS")  # fmt: skip
    broken = {**theirs, "rival": "blocks", "verdict": "ERROR", "time_s": None,
              "reasons": ["ValueError: a|b"]}  # fmt: skip
    pair = {"name": "linear_fp8 wq_b M=1 N=32768 K=1024", "rival": "torch.mm bf16", "a": {},
            "b": {}, "time": "FASTER", "ratio": 0.5, "time_s": [18e-6, 9e-6]}  # fmt: skip
    text, _ = speed.page([document(ours, theirs, broken, pairs=[pair])])
    good, bad = rows(text, "linear_fp8 wq_b M=1")
    assert good[2:] == ["18.00 us", "9.00 us", "2.00", "FASTER"]
    assert bad[2:] == ["-", "-", "-", "ValueError: a/b"]


def test_two_arms_have_a_row_of_their_own() -> None:
    pair = {"name": "step x", "rival": None, "a": {}, "b": {"branches": "on"}, "time": "SLOWER",
            "ratio": 1.25, "time_s": [4e-3, 5e-3]}  # fmt: skip
    text, _ = speed.page([document(result("cast_bf16", "c", 1e-6, 10), pairs=[pair])])
    assert rows(text, "step x") == [
        ["step x", "-", "branches=on", "4.000 ms", "5.000 ms", "1.250", "SLOWER"]
    ]


def test_the_latest_document_tells_what_both_measured() -> None:
    old, new = (document(result("cast_bf16", "hidden", t, 24576)) for t in (3e-6, 2e-6))
    assert [r[3] for r in rows(speed.page([old, new])[0], "`cast_bf16`")] == ["2.00 us"]


def test_a_page_of_nothing_of_a_cpu_or_of_two_cards_is_refused() -> None:
    good = document(result("cast_bf16", "hidden", 2e-6, 24576))
    with pytest.raises(Refusal, match="nothing"):
        speed.page([])
    with pytest.raises(Refusal, match="of a CPU"):
        speed.page([{**good, "roofs": None}])
    with pytest.raises(Refusal, match="a document of step"):
        speed.page([{**good, "command": "step"}])
    with pytest.raises(Refusal, match="one card"):
        speed.page([good, {**good, "env": {**ENV, "device": "another"}}])


def test_a_real_document_of_a_cpu_makes_no_page(tmp_path: Path) -> None:
    from lab.cli.main import main as lab

    made = CliRunner().invoke(
        lab, ["bench", "cast_bf16", "--backend", "host", "--no-record", "--json"]
    )
    (tmp_path / "a.json").write_text(made.stdout)
    done = CliRunner().invoke(speed.main, [str(tmp_path / "a.json"), "--out", str(tmp_path)])
    assert done.exit_code == 1 and "of a CPU" in done.output
    assert not (tmp_path / speed.PAGE).exists()


def test_the_kept_documents_make_the_same_page(tmp_path: Path) -> None:
    made = document(result("linear_fp8", "wq_b", 9e-6, 33_600_000, axes=WQ_B), more="text")
    (tmp_path / "a.json").write_text(json.dumps(made))
    words = [str(tmp_path / "a.json"), "--out", str(tmp_path), "--keep"]
    assert CliRunner().invoke(speed.main, words).exit_code == 0
    kept = speed.read_documents([tmp_path / "measured" / "bench" / "a.json"])
    assert "outputs" not in kept[0]["results"][0] and "packages" not in kept[0]["env"]
    text, picture = speed.page(kept)
    assert text == (tmp_path / speed.PAGE).read_text(encoding="utf-8")
    assert picture == (tmp_path / speed.PICTURE).read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_committed_documents_make() -> None:
    committed = sorted(speed.COMMITTED.glob("*.json"))
    files = [speed.DOCS / name for name in (speed.PAGE, speed.PICTURE)]
    if not committed:
        assert not any(f.exists() for f in files), "a page claims what no document says"
        return
    made = speed.page(speed.read_documents(committed), read_runs(speed.RUNS))
    assert tuple(f.read_text(encoding="utf-8") for f in files) == made


def run_of(graph_s: float, *, cards: int = 2, model: str = several_cards.MODEL, **more: Any) -> Any:
    """A shortened document of `step`; more: of its one step, and its streams."""
    streams = more.pop("streams", [])
    step = {"position": 200, "rows": 1, "launches": 498, "size_bytes": 10**10, "graph_s": graph_s,
            "step_s": 1.0, **more}  # fmt: skip
    return {"schema": 1, "command": "step", "model": model, "env": ENV, "cards": cards,
            "steps": [step], "streams": streams}  # fmt: skip


def test_runs_of_one_part_and_card_are_a_row_with_what_they_measured() -> None:
    one, two = document(result("a", "b", 1e-5, 10)), document(result("c", "d", 1e-5, 10))
    two["roofs"] = {**two["roofs"], "read_bytes_per_s": 4.58e12}
    (row,) = rows(speed.page([one, two])[0], "kernels")
    assert row[2:5] == ["2", "4.00 to 4.58 TB/s", "3.80 TB/s"]
    other = {**two, "env": {**ENV, "git": {"commit": "0a1b2c3d4"}}}
    assert [row[2] for row in rows(speed.page([one, other])[0], "kernels")] == ["1", "1"]


def test_several_cards_are_told_beside_their_targets() -> None:
    turns = [{"streams": 2, "alone_s": 1 / 215, "step_s": 1 / 204, "rows_per_s": 408.0}]
    split = run_of(1 / 224, boundary_bytes=65536, boundary_s=3e-5, streams=turns)
    ranks = run_of(1 / 303, joins=87, join_s=3e-6)
    others = [run_of(1 / 900, cards=4), run_of(1 / 900, model="mint:tiny"), run_of(1e-3, cards=1)]
    text, _ = speed.page([document(result("a", "b", 1e-5, 10))], [split, ranks, *others])
    assert [row[1:] for row in rows(text, "layers split")] == [
        ["at least 220 tokens/s", "224", "yes"], ["at least 400 tokens/s", "408", "yes"],
    ]  # fmt: skip
    assert [row[1:] for row in rows(text, "tensor parallel")] == [
        ["at least 400 tokens/s", "303", "no"], ["at least 550 tokens/s (stretch)", "303", "no"],
    ]  # fmt: skip
    assert "2 x **NVIDIA H200** (driver 580.1, nvrtc 13.0, commit 4f1c2ab):" in text
    assert "87 joins of 3.0 us" in text and "4 x **NVIDIA H200**" in text


def test_without_several_cards_there_is_no_section_and_without_a_figure_no_claim() -> None:
    bench = [document(result("a", "b", 1e-5, 10))]
    assert "Several cards" not in speed.page(bench, [run_of(1e-3, cards=1)])[0]
    text, _ = speed.page(bench, [run_of(1 / 224)])
    (turns,) = [row for row in rows(text, "layers split") if "400" in row[1]]
    assert turns[2:] == ["-", "not measured"]


def test_every_target_names_cases_that_are_timed_and_has_a_floor() -> None:
    config = flash_config()
    for target in TARGETS:
        assert target.words()
        if target.most is None:
            assert target.floor_bytes(config) > 0 and target.formula
    # Six experts and the shared one read three matrices each: 17/32 of a byte a weight, and one.
    experts = next(t for t in TARGETS if t.what.startswith("experts of one row"))
    weights = 3 * 2048 * 4096
    assert experts.floor_bytes(config) == pytest.approx(weights * (6 * 17 / 32 + 1), rel=2e-3)
    assert reached([], config, ROOF)[0].met is None


def test_a_cached_row_and_a_key_by_hand() -> None:
    # 448 codes, 7 scales and 64 bf16 are 583 bytes; 128 codes and a float32 are 132.
    assert cached_row_bytes(flash_config()) == 584
    assert index_key_bytes(flash_config()) == 132


def test_names_in_the_picture_do_not_cover_each_other() -> None:
    crowd = [Point(f"p{n}", (1 << 20) + n, 1e-6, True, f"name {n}") for n in range(40)]
    apart = Point("alone", 1 << 30, 1e-3, True, "alone")
    picture = roofline([*crowd, apart], read=4e12, copy=3.8e12, launch_s=1e-6)
    written = [n for n in range(40) if f">name {n}<" in picture]
    assert 0 < len(written) < 6 and ">alone<" in picture


def test_the_picture_is_a_script_free_image_whose_points_lie_where_they_should() -> None:
    slow = Point("one <&>", 1 << 20, 1e-6, cold=False)
    fast = Point("two", 1 << 25, 1e-5, cold=True, short="two")
    picture = roofline([slow, fast], read=4e12, copy=3.8e12, launch_s=1e-6)
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert not [e for e in root.iter() if e.tag == f"{space}script"]
    assert "prefers-color-scheme: dark" in picture and "href" not in picture
    circles = list(root.iter(f"{space}circle"))
    assert [c.get("class") for c in circles] == ["point warm", "point cold"]
    # More bytes lie further right, more bytes a second higher up.
    assert float(circles[0].get("cx") or 0) < float(circles[1].get("cx") or 0)
    assert float(circles[0].get("cy") or 0) > float(circles[1].get("cy") or 0)
    assert circles[0][0].text == "one <&>"
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    for circle in circles:
        assert 0 < float(circle.get("cx") or -1) < width
        assert 0 < float(circle.get("cy") or -1) < height
