"""The page of limits: counters, reasons and attempts of what is missed, or a refusal by name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsv4 import registry
from dsv4.errors import Refusal
from dsv4.runtime.device import open_device
from lab.bench.targets import TARGETS, Part
from lab.cli import ncu as command
from lab.cli.main import main as lab
from lab.debug.choose import one_case
from lab.report import limits, speed, speed_tables
from lab.report.attempts import Attempt, Written, read_attempts
from lab.tools.ncu import HEADLINES, STALLS, Metric
from tests.bench.test_speed_page import ENV, WQ_B, document, result, rows

WHAT = "wq_b, FP8, one row"
RATIO = "eight rows of wq_b over one"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COUNTED = {
    "gpu__time_duration.sum": (13.92e-6, "s"),
    "gpc__cycles_elapsed.avg.per_second": (1.8e9, "Hz"),
    "dram__bytes.sum": (34_627_072.0, "B"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": (51.94, "%"),
    "lts__t_sector_hit_rate.pct": (37.15, "%"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": (39.61, "%"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": (23.42, "%"),
    "launch__registers_per_thread": (126.0, "register/thread"),
    STALL.format("long_scoreboard"): (3.97, "inst"),
    STALL.format("barrier"): (0.49, "inst"),
    STALL.format("short_scoreboard"): (1.04, "inst"),
    STALL.format("wait"): (0.89, "inst"),
}


def counters(kernel: str, case: str, axes: dict[str, int], **more: Any) -> dict[str, Any]:
    """What `ncu --json` prints of a launch."""
    metrics = {name: {"value": value, "unit": unit} for name, (value, unit) in COUNTED.items()}
    found = {"kernel": kernel, "case": case, "axes": axes, "verdict": "PASS", "outputs": [],
             "source_digest": "ab12", "ncu": metrics, **more}  # fmt: skip
    return {"schema": 1, "command": "ncu", "env": ENV, "run": 7, "result": found}


def of_part(part: Part, env: dict[str, Any] = ENV) -> dict[str, Any]:
    """Counters of a target's part."""
    return {**counters(part.kernel, part.case, dict(part.axes)), "env": env}


def written(*targets: str, attempts: int = 3) -> Written:
    """A sentence and so many attempts for each target."""
    tried = [Attempt(targets, f"way {i}", f"+{i} us", f"abc{i}") for i in range(attempts)]
    return Written("Timed on a card.", {t: f"Latency limits {t}." for t in targets}, tried)


def wq_b(time_s: float, rows: int = 1) -> dict[str, Any]:
    return result("linear_fp8", "wq_b", time_s, 33_600_000, axes={**WQ_B, "M": rows})


MISSED = [document(wq_b(9.4e-6))]


def test_a_missed_target_has_its_counters_a_reason_and_what_was_tried() -> None:
    text = limits.page(MISSED, [counters("linear_fp8", "wq_b", WQ_B)], written(WHAT))
    assert f"\n## {WHAT}\n" in text and text.count("\n## ") == 1
    assert "Target: at most 8.8 us, at least 85 % of the roof. Measured: 9.40 us, 90 %" in text
    told = dict(rows(text, label)[0] for label in (*limits._SHOWN, *limits._STALLS_SHOWN))
    assert told == {
        "time": "13.92 us", "DRAM bytes": "34.63 MB", "DRAM of peak": "51.94 %",
        "L2 hits": "37.15 %", "issue slots used": "39.61 %", "warps active": "23.42 %",
        "registers": "126", "SM of peak": "-",
        "largest stall": "3.97 warps that wait for memory",
        "second stall": "1.04 warps that wait for shared memory",
        "third stall": "0.89 warps that wait for a result of known latency",
    }  # fmt: skip
    assert f"\n\nLatency limits {WHAT}.\n\n" in text and "\n\nTimed on a card.\n\n" in text
    assert "1. way 0: +0 us (commit abc0)\n2. way 1: +1 us (commit abc1)\n3. way 2" in text


def test_every_document_is_told_with_card_driver_compiler_and_commit() -> None:
    text = limits.page(MISSED, [counters("linear_fp8", "wq_b", WQ_B)], written(WHAT))
    card = "**NVIDIA H200** (driver 580.1, nvrtc 13.0, commit 4f1c2ab)"
    assert rows(text, "kernels")[0][1] == card
    assert [card, "`linear_fp8` wq_b M=1"] in rows(text, "**NVIDIA H200**")


def test_each_launch_of_a_target_has_a_column() -> None:
    bench = [document(wq_b(8e-6), wq_b(12e-6, rows=8))]
    given = [counters("linear_fp8", "wq_b", {**WQ_B, "M": m}) for m in (1, 8)]
    text = limits.page(bench, given, written(RATIO))
    (header,) = rows(text, "counter |")
    assert header == ["counter", "`linear_fp8` wq_b M=8", "`linear_fp8` wq_b M=1"]
    assert "Target: at most 1.15 times one row. Measured: 1.5." in text
    halves = next(t for t in TARGETS if t.what.startswith("experts of eight"))
    assert [p.kernel for p in halves.profiled] == ["experts_mx_gate_up", "experts_mx_down"]


def test_missing_counters_are_refused_with_the_commands_that_make_them() -> None:
    bench = [document(wq_b(9.4e-6), wq_b(12e-6, rows=8))]
    with pytest.raises(Refusal) as refused:
        limits.page(bench, [counters("linear_fp8", "wq_b", WQ_B)], written(WHAT, RATIO))
    assert f"{RATIO}: no counters of linear_fp8 wq_b M=8: dsv4-lab ncu linear_fp8 -c wq_b" in str(
        refused.value
    )
    assert WHAT not in str(refused.value)


def test_two_attempts_and_no_reason_are_refused_by_name() -> None:
    given = [counters("linear_fp8", "wq_b", WQ_B)]
    with pytest.raises(Refusal, match=f"{WHAT}: 2 of at least 3 attempts"):
        limits.page(MISSED, given, written(WHAT, attempts=2))
    speechless = Written("", {}, written(WHAT).attempts)
    with pytest.raises(Refusal, match=f"{WHAT}: no sentence"):
        limits.page(MISSED, given, speechless)


def test_what_is_met_is_left_out_and_asks_for_nothing() -> None:
    text = limits.page([document(wq_b(8e-6))], [], written(WHAT))
    assert "No target is missed." in text and WHAT not in text


def test_a_step_has_attempts_and_no_counters() -> None:
    step = result(
        "step", "mint:flash,layers=43 context 200 rows 1", 5e-3, 11_500_000_000, family="bench",
        model="mint:flash,layers=43", rows=1, position=200, launches=500,
    )  # fmt: skip
    what = "decode step, 43 layers, one row"
    text = limits.page([document(step, part="step")], [], written(what))
    assert f"\n## {what}\n" in text and "| counter |" not in text
    # The stretch of 300 tokens a second is missed as well, and is not told.
    assert text.count("\n## ") == 1 and "stretch" not in text


def test_documents_of_nothing_that_is_missed_here_are_refused() -> None:
    good = counters("linear_fp8", "wq_b", WQ_B)
    for broken, words in (
        ({**good, "command": "bench"}, "a document of bench"),
        ({**good, "env": None}, "the card that they are of"),
        (counters("linear_fp8", "wq_b", WQ_B, verdict="FAIL"), "its check says FAIL"),
        (counters("cast_bf16", "hidden", {}), "no target is about it"),
        (of_part(TARGETS[0].parts[0], {**ENV, "device": "another"}), "NVIDIA H200, another"),
    ):
        with pytest.raises(Refusal, match=words):
            limits.page(MISSED, [broken], written(WHAT))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[attempts]]\ntargets = ['wq_b']\nwhat = 'a'\nresult = 'b'", "is about wq_b"),
        ("[limits]\n'wo_z' = 'a'", "is about wo_z"),
        ("[[attempts]]\ntargets = []\nwhat = 'a'", "cannot be read"),
        ("[[attempts]]\nhow = 'a'", "cannot be read"),
        ("[limits", "cannot be read"),
    ],
)
def test_a_record_with_other_fields_or_targets_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "attempts.toml").write_text(text)
    with pytest.raises(Refusal, match=words):
        read_attempts(tmp_path / "attempts.toml")


def test_the_command_of_every_part_chooses_its_case() -> None:
    for part in (p for t in TARGETS for p in t.profiled):
        _, _, kernel, _, name, *axes, _ = shlex.split(limits.command_of(part))
        case = one_case(registry.spec(kernel), axes[1:], [name])
        assert part.is_it({"kernel": kernel, "case": case.name, "axes": case.axes})
        assert part.words in limits.by_part([of_part(part)])


def test_a_document_of_the_command_is_one_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = [Metric(n, (HEADLINES | STALLS)[n], v, u) for n, (v, u) in COUNTED.items()]
    monkeypatch.setattr(command, "open_device", lambda *_, **__: open_device("host"))
    monkeypatch.setattr(command, "find_ncu", lambda: None)
    monkeypatch.setattr(command, "profile", lambda *_, **__: (metrics, ""))
    done = CliRunner().invoke(lab, ["ncu", "cast_bf16", "--no-record", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    # A CPU has no name of a card.
    kept = limits.shortened({**printed, "env": {**printed["env"], "device": "a card"}})
    assert "outputs" not in kept["result"] and "packages" not in kept["env"]
    assert limits._column(kept["result"]["ncu"])[0] == "13.92 us"


def missed_now() -> list[str]:
    kept, found = speed.gathered(speed.read_documents([*speed.COMMITTED.glob("*.json")]))
    reached = speed_tables.told(found, kept[0]["roofs"]["read_bytes_per_s"])
    return [r.target.what for r in speed_tables.missed(reached)]


def test_kept_counters_make_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (committed, *_) = speed.read_documents([*speed.COMMITTED.glob("*.json")])
    parts = {p.words: p for t in TARGETS if t.what in missed_now() for p in t.profiled}
    for i, part in enumerate(parts.values()):
        made = json.dumps(of_part(part, committed["env"]))
        (tmp_path / f"{i}.json").write_text(made)
    given = [str(path) for path in tmp_path.glob("*.json")]
    done = CliRunner().invoke(limits.main, [*given, "--out", str(tmp_path), "--keep"])
    assert done.exit_code == 0, done.output
    text = (tmp_path / limits.PAGE).read_text(encoding="utf-8")
    kept = tmp_path / "measured" / "ncu"
    assert len([*kept.glob("*.json")]) == len(parts)
    monkeypatch.setattr(limits, "COMMITTED", kept)
    done = CliRunner().invoke(limits.main, ["--out", str(tmp_path / "again")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "again" / limits.PAGE).read_text(encoding="utf-8") == text


def test_all_that_is_missed_has_a_reason_and_three_attempts() -> None:
    record = read_attempts(limits.ATTEMPTS)
    for target in (t for t in TARGETS if t.what in missed_now()):
        assert record.limits.get(target.what), target.what
        assert len(record.about(target)) >= limits.FEWEST, target.what


def test_the_committed_page_is_what_the_committed_documents_make(tmp_path: Path) -> None:
    committed = speed.DOCS / limits.PAGE
    if not [*limits.COMMITTED.glob("*.json")]:
        assert not committed.exists(), "a page claims what no document says"
        return
    done = CliRunner().invoke(limits.main, ["--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    made = (tmp_path / limits.PAGE).read_text(encoding="utf-8")
    assert committed.read_text(encoding="utf-8") == made


def test_the_page_of_speeds_points_to_the_limits_where_a_target_is_missed() -> None:
    assert "[limits](limits.md)" in speed.page(MISSED)[0]
    assert "limits.md" not in speed.page([document(wq_b(8e-6))])[0]
