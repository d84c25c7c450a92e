"""`compare`: bits, contracts, time and code of two sides; thresholds; exit codes; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4.errors import SpecError
from lab.record.comparison import (
    AMBIGUOUS,
    FASTER,
    SAME,
    SLOWER,
    Change,
    Thresholds,
    changes,
    read_thresholds,
    time_verdict,
)
from lab.record.sides import Entry, Interval, Side
from tests.lab.planted import lab, planted


def entry(output: str = "o", build: dict[str, int] | None = None, **more: object) -> Entry:
    """One result of a side."""
    facts = {"verdict": "PASS", "input_digest": "i", "time": None, "place": "host run", **more}
    return Entry(
        kernel="k",
        label="c-T=1",
        seed=0,
        output_digest=output,
        build=build or {},
        result={},
        **facts,  # type: ignore[arg-type]
    )


def change(a: Entry, b: Entry, slower: float = 0.05) -> Change:
    """The one change between two sides of one result each."""
    return changes(Side("a", "d", (a,)), Side("b", "d", (b,)), Thresholds(slower))[0]


def times(low: float, middle: float, high: float, sm_mhz: float | None = None) -> Interval:
    """An interval of fifteen samples."""
    return Interval(low, middle, high, 15, sm_mhz)


def test_a_gap_beyond_the_threshold_is_needed_for_slower_and_faster() -> None:
    a = times(1.0, 1.01, 1.02)
    assert time_verdict(a, times(1.2, 1.21, 1.22), 0.05)[0] == SLOWER
    assert time_verdict(times(1.2, 1.21, 1.22), a, 0.05)[0] == FASTER
    assert time_verdict(a, times(1.0, 1.04, 1.3), 0.05)[0] == SAME
    word, advice = time_verdict(a, times(1.0, 1.2, 1.3), 0.05)
    assert word == AMBIGUOUS and "again" in advice


def test_a_slowdown_that_is_the_clock_alone_is_ambiguous() -> None:
    # 10 % more seconds at 10 % less clock: the same cycles.
    word, advice = time_verdict(
        times(1.0, 1.0, 1.0, sm_mhz=1980.0), times(1.1, 1.1, 1.1, sm_mhz=1800.0), 0.05
    )
    assert word == AMBIGUOUS
    assert "1980" in advice and "1800" in advice


def test_two_samples_decide_nothing() -> None:
    few = Interval(1.0, 1.0, 1.0, 2)
    assert time_verdict(few, Interval(9.0, 9.0, 9.0, 2), 0.05)[0] == AMBIGUOUS


def test_other_bytes_on_the_same_inputs_fail_and_other_inputs_are_ambiguous() -> None:
    assert change(entry("o"), entry("o")).bits == SAME
    assert change(entry("o"), entry("p")).bits == "FAIL"
    assert change(entry("o"), entry("p", input_digest="j")).bits == AMBIGUOUS


def test_what_only_one_side_has_is_new_or_missing() -> None:
    one, none = Side("a", "d", (entry(),)), Side("b", "d", ())
    assert [c.bits for c in changes(one, none, Thresholds())] == ["MISSING"]
    assert [c.bits for c in changes(none, one, Thresholds())] == ["NEW"]


def test_codegen_lists_what_changed_and_sees_a_spill() -> None:
    a = {"regs": 32, "smem": 0, "local_bytes": 0, "sass_bytes": 1024}
    b = {"regs": 40, "smem": 0, "local_bytes": 8, "sass_bytes": 2048}
    found = change(entry(build=a), entry(build=b))
    assert found.codegen == {"registers": (32, 40), "spills": (0, 8), "code": (1024, 2048)}
    assert found.spills_more


def test_times_of_two_devices_are_not_compared() -> None:
    a, b = entry(time=times(1, 1, 1)), entry(time=times(9, 9, 9))
    assert changes(Side("a", "x", (a,)), Side("b", "y", (b,)), Thresholds())[0].time == ""


def test_a_kernel_may_have_a_threshold_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[default]\nslower = 0.02\n[rms_norm]\nslower = 0.5\n")
    found = read_thresholds(file)
    assert (found.of("rms_norm"), found.of("cast_bf16")) == (0.5, 0.02)


@pytest.mark.parametrize("text", ["[a]\nslow = 1\n", "a = 1\n", "[a]\nslower = true\n", "[["])
def test_a_threshold_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match="slower"):
        read_thresholds(file)


def test_a_record_is_compared_with_a_run_of_a_wrong_kernel(tmp_path: Path) -> None:
    case = ("kernel-diff", "cast", "-c", "tail", "--backend", "host", "--no-time")
    assert lab(tmp_path, *case).returncode == 0
    wrong = planted(tmp_path, "cast.cu", "y[i] = f32_to_bf16(x[i]);",
                    "y[i] = (bf16)(__float_as_uint(x[i]) >> 16);")  # fmt: skip
    lab(tmp_path, *case, DSV4_CUDA_ROOT=wrong)
    done = lab(tmp_path, "--json", "compare", "1")
    assert done.returncode == 1, done.stderr  # the contract is broken, which is worse than bits
    document = json.loads(done.stdout)
    assert document["changes"][0]["bits"] == "FAIL"
    assert document["changes"][0]["contract"] == ["PASS", "FAIL"]
    assert document["exit_codes"] == [1, 5]
    bits_only = lab(tmp_path, "compare", "1", "2", "--fail-on", "bits", "--explain")
    assert bits_only.returncode == 5
    assert "first other byte at N=" in bits_only.stdout


def test_a_slowed_loop_is_slower_and_exits_6(tmp_path: Path) -> None:
    case = ("kernel-diff", "rms_norm_f32", "-c", "verify", "--backend", "host")
    assert lab(tmp_path, *case).returncode == 0
    slow = planted(tmp_path, "rms_norm.cu", "    Sum sum = 0;\n",
                   "    Sum sum = 0;\n    for (volatile int wait = 0; wait < 30000; ++wait) {\n"
                   "    }\n")  # fmt: skip
    assert lab(tmp_path, *case, DSV4_CUDA_ROOT=slow).returncode == 0
    done = lab(tmp_path, "compare", "1", "2", "--fail-on", "slow,bits,contract")
    assert "SLOWER" in done.stdout
    assert done.returncode == 6
    generous = tmp_path / "generous.toml"
    generous.write_text("[rms_norm_f32]\nslower = 9.9\n")
    relaxed = lab(tmp_path, "compare", "1", "2", "--fail-on", "bits,contract", "--threshold",
                  str(generous))  # fmt: skip
    assert relaxed.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "nonsense"], ["nonsense", "no revision"]),
        (["compare", "1", "--fail-on", "weather"], ["weather"]),
        (["compare", "1"], ["no store"]),
        (["compare", "1", "2", "--threshold", "none.toml"], ["none.toml"]),
    ],
)
def test_bad_input_is_refused_in_words(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = lab(tmp_path, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
