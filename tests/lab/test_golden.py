"""Golden digests: checked, pending until a person accepts, pruned; damaged files are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.runtime.hostdevice import HostDevice
from lab.cases import cases
from lab.record import golden
from tests.lab.planted import lab, planted
from tests.lab.terminal import terminal

TRUNCATES = ("cast.cu", "y[i] = f32_to_bf16(x[i]);",
             "y[i] = (bf16)(__float_as_uint(x[i]) >> 16);")  # fmt: skip
CHECK = ("golden", "check", "cast", "-c", "tail", "--backend", "host", "--folder", "goldens")


def one_row() -> golden.Row:
    """The golden of one case, run now."""
    spec = registry.spec("cast_bf16")
    work = [(spec, next(c for c in cases("cast_bf16") if c.name == "tail"))]
    (finding,) = golden.check(work, Path("nowhere"), HostDevice(), 0)
    assert finding.now is not None
    return finding.now


def test_a_case_without_a_golden_is_new_until_it_is_accepted(tmp_path: Path) -> None:
    first = lab(tmp_path, *CHECK)
    assert (first.returncode, "NEW" in first.stdout) == (5, True)
    assert not (tmp_path / "goldens").exists()  # a check writes no golden
    assert lab(tmp_path, "golden", "accept", "cast", "--folder", "goldens").returncode == 0
    second = lab(tmp_path, *CHECK)
    assert (second.returncode, "1 SAME" in second.stdout) == (0, True)


def test_cases_of_several_axes_are_found_again(tmp_path: Path) -> None:
    check = ("golden", "check", "act_quant_fp8", "-c", "hidden,verify", "--backend", "host",
             "--folder", "goldens")  # fmt: skip
    assert lab(tmp_path, *check).returncode == 5
    lab(tmp_path, "golden", "accept", "--all", "--folder", "goldens")
    assert "2 SAME" in lab(tmp_path, *check).stdout
    lab(tmp_path, "kernel-diff", "act_quant_fp8", "-c", "hidden", "--backend", "host")
    again = lab(tmp_path, "kernel-diff", "act_quant_fp8", "-c", "hidden", "--backend", "host",
                "--against", "record:1")  # fmt: skip
    assert (again.returncode, "against SAME" in again.stdout) == (0, True)


def test_changed_bytes_fail_with_what_moved_and_cannot_be_accepted(tmp_path: Path) -> None:
    lab(tmp_path, *CHECK)
    lab(tmp_path, "golden", "accept", "--all", "--folder", "goldens")
    before = (tmp_path / "goldens" / "cast.jsonl").read_text()
    wrong = planted(tmp_path, *TRUNCATES)
    done = lab(tmp_path, "--json", *CHECK, DSV4_CUDA_ROOT=wrong)
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert document["summary"]["FAIL"] == 1
    assert "257/257 -> 123/257" in document["findings"][0]["why"]
    refused = lab(tmp_path, "golden", "accept", "--all", "--folder", "goldens")
    assert refused.returncode == 2
    assert "holds its contract" in refused.stderr
    assert (tmp_path / "goldens" / "cast.jsonl").read_text() == before


def test_kernel_diff_holds_bytes_against_what_was_accepted(tmp_path: Path) -> None:
    lab(tmp_path, *CHECK)
    lab(tmp_path, "golden", "accept", "--all", "--folder", "goldens")
    case = ("--json", "kernel-diff", "cast", "-c", "tail,one", "--backend", "host", "--no-time",
            "--against", "golden:goldens")  # fmt: skip

    def against(**more: str) -> tuple[int, dict[str, str]]:
        done = lab(tmp_path, *case, **more)
        results = json.loads(done.stdout)["results"]
        return done.returncode, {r["case"]: r["against"] for r in results}

    # A case that nobody accepted is MISSING, whatever tests/golden/portable.jsonl holds.
    assert against() == (5, {"tail": "SAME", "one": "MISSING"})
    wrong = planted(tmp_path, *TRUNCATES)
    code, verdicts = against(DSV4_CUDA_ROOT=wrong)
    assert (code, verdicts["tail"]) == (1, "DIFFERENT")


def test_kernel_diff_finds_the_goldens_of_the_checkout(tmp_path: Path) -> None:
    case = ("kernel-diff", "cast", "-c", "tail", "--backend", "host", "--against", "golden")
    done = lab(tmp_path, *case)
    assert (done.returncode, "against SAME" in done.stdout) == (0, True), done.stdout + done.stderr


def test_goldens_of_another_machine_are_none_of_this_one(tmp_path: Path) -> None:
    spec, device = registry.spec("cast_bf16"), HostDevice()
    here = {**one_row(), "arch": "host", "compiler": golden.compiler_of(device)}
    there = {**here, "case": "one", "axes": {"N": 1}, "arch": "sm_90a", "compiler": "nvrtc 13.0"}
    golden.write(tmp_path / "cast.jsonl", [here, there])
    assert golden.accepted([spec], tmp_path, device) == [json.loads(json.dumps(here))]
    golden.write(tmp_path / "cast.jsonl", [there])
    with pytest.raises(SpecError, match=r"no golden of cast_bf16 was accepted for host"):
        golden.accepted([spec], tmp_path, device)


def test_portable_kernels_have_one_golden_for_every_machine() -> None:
    assert (one_row()["arch"], one_row()["compiler"]) == ("any", "any")


def test_the_error_may_not_grow_by_a_quarter_on_the_same_bytes() -> None:
    row = one_row()
    old = json.loads(json.dumps(row))
    old["outputs"]["y"]["rel_l2"] = row["outputs"]["y"]["rel_l2"] / 1.3
    assert "rel-l2 grew" in golden._moved(old, row)
    assert golden._moved(row, row) == ""


def test_a_golden_whose_case_is_gone_is_missing_and_pruned(tmp_path: Path) -> None:
    row = {**one_row(), "case": "gone"}
    golden.write(tmp_path / "cast.jsonl", [row, one_row()])
    spec = registry.spec("cast_bf16")
    (finding,) = golden.missing([spec], tmp_path)
    assert (finding.verdict, finding.label) == ("MISSING", "gone-N=257")
    gone = golden.prune(tmp_path, registry.match(()))
    assert [r["case"] for r in gone] == ["gone"]
    assert [r["case"] for r in golden.read(tmp_path / "cast.jsonl").values()] == ["tail"]


@pytest.mark.parametrize("line", ["{", "[]", '{"schema": 1}', '{"schema": 9}'])
def test_a_damaged_golden_names_file_and_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "cast.jsonl"
    file.write_text(f"\n{line}\n")
    with pytest.raises(SpecError, match=r"cast.jsonl:2 is no golden"):
        golden.read(file)


def test_a_failing_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "cast.jsonl"
    golden.write(file, [one_row()])
    before = file.read_text()
    with pytest.raises(TypeError):
        golden.write(file, [{**one_row(), "outputs": object()}])
    assert file.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cast.jsonl"]


def test_review_shows_both_histograms_and_takes_single_keys_on_a_terminal(tmp_path: Path) -> None:
    lab(tmp_path, "golden", "check", "cast", "-c", "tail,special", "--backend", "host",
        "--folder", "goldens")  # fmt: skip
    with terminal(tmp_path, "golden", "review", "--folder", "goldens") as screen:
        shown = screen.wait_for("[q]uit?")
        screen.type("a")
        shown += screen.wait_for("[q]uit?")
        screen.type("r")
        shown += screen.wait_for("of 2 pending")
        assert screen.exit_code() == 0
    assert "before" in shown and "after" in shown and "####" in shown
    assert "1 accepted, 1 rejected" in shown
    assert len(golden.read(tmp_path / "goldens" / "cast.jsonl")) == 1
    assert not (tmp_path / golden.PENDING).exists()


@pytest.mark.parametrize("family", ["act_quant", "cast", "rms_norm", "router"])
def test_the_accepted_goldens_hold(family: str) -> None:
    work = [
        (kernel.spec, case)
        for kernel in registry.kernels().values()
        if kernel.spec.family == family
        for case in cases(kernel.spec.name)
        if case.level == "quick"
    ]
    found = list(golden.check(work, golden.FOLDER, HostDevice(), 0))
    assert found
    assert [(f.kernel, f.label, f.why) for f in found if f.verdict != golden.SAME] == []
