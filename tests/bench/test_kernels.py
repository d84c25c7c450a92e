"""A kernel's timing stands behind its contract, and two arms are compared in turns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.runtime.hostdevice import HostDevice
from lab.bench import kernels
from lab.bench.chosen import plan
from lab.bench.clocks import NO_CLOCK
from lab.bench.kernels import arms_of, bench_case
from lab.bench.measured import Measured, Pair, paired
from lab.bench.roofs import Roofs
from lab.measure.timing import Timing
from lab.result import ERROR, FAIL, PASS

ROOFS = Roofs(read=4e12, copy=3.9e12, launch_s=1e-6, grid="528 blocks of 512")


def measured(
    *samples: float, verdict: str = PASS, size: int = 10**6, digest: str = "d", cold: bool = True
) -> Measured:
    timing = Timing(samples, cold) if samples else None
    facts: dict[str, Any] = {"kernel": "k", "case": "c", "backend": "cuda", "output_digest": digest}
    return Measured(facts, {}, verdict, timing, size, ROOFS.read, NO_CLOCK, 128)


def one(kernel: str, case: str) -> Any:
    return plan([kernel], names=[case])[0]


def test_a_case_that_holds_its_contract_is_timed() -> None:
    spec, case = one("cast_bf16", "tail")
    (found,), pair = bench_case(spec, case, HostDevice(), None, samples=5)
    document = found.to_json()
    assert pair is None and document["verdict"] == PASS and document["time_samples"] == 5
    assert document["time_s"] > 0 and document["timing"]["q1"] <= document["timing"]["q3"]
    assert document["bytes"] == 6 * 257 and document["read_fraction"] is None
    assert "no measure of a GPU" in document["timed_by"]


def test_two_arms_are_one_pair_with_the_same_bytes() -> None:
    spec, case = one("roof_read", "tail")
    arms = [{"threads": 512}, {"threads": 256}]
    found, pair = bench_case(spec, case, HostDevice(), None, arms=arms, samples=4)
    assert [m.arm for m in found] == arms and pair is not None
    assert pair.time in ("SAME", "FASTER", "SLOWER", "AMBIGUOUS") and pair.same_bytes
    assert math.isclose(pair.ratio or 0, (pair.b_s or 0) / (pair.a_s or 1))


def test_a_broken_contract_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, case = one("cast_bf16", "tail")

    def broken(*given: Any) -> Any:
        return replace(real(*given), verdict=FAIL, reasons=("y: wrong",))

    real = kernels.run_case
    monkeypatch.setattr(kernels, "run_case", broken)
    found, pair = bench_case(spec, case, HostDevice(), None, arms=[{}, {}], samples=3)
    assert {m.verdict for m in found} == {FAIL} and all(m.timing is None for m in found)
    assert found[0].to_json()["time_s"] is None
    assert pair is not None and not pair.time and "no verdict" in pair.why


def test_launches_that_leave_other_bytes_take_the_verdict_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, case = one("cast_bf16", "tail")
    real = kernels.turn_by_turn

    def scribbling(sides: Any, samples: int) -> Any:
        timings = real(sides, samples)
        made[-1].arrays["y"].array[3] ^= 1
        return timings

    made: list[kernels.Copy] = []
    copies = kernels.copies

    def watched(*given: Any) -> Any:
        made.extend(copies(*given))
        return tuple(made)

    monkeypatch.setattr(kernels, "copies", watched)
    monkeypatch.setattr(kernels, "turn_by_turn", scribbling)
    (found,), _ = bench_case(spec, case, HostDevice(), None, samples=3)
    assert found.verdict == FAIL and found.timing is None
    assert "other bytes" in found.facts["reasons"][0]


def test_a_source_that_does_not_compile_is_an_error_without_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dsv4.errors import CompileError

    def refuse(*given: Any) -> Any:
        raise CompileError("no")

    monkeypatch.setattr(kernels, "run_case", refuse)
    spec, case = one("cast_bf16", "tail")
    (found,), _ = bench_case(spec, case, HostDevice(), None)
    assert found.verdict == ERROR and found.facts["error_class"] == "CompileError"


def test_the_fraction_is_counted_bytes_over_the_roof_of_reading() -> None:
    # 1 MB in 0.5 us is 2 TB/s, half of 4.
    found = measured(5e-7, 5e-7, 5e-7)
    assert math.isclose(found.fraction or 0, 0.5) and not found.doubt


def test_more_than_the_roof_gives_is_doubted_unless_it_was_warm() -> None:
    assert "faster than memory" in measured(2e-7, 2e-7, 2e-7).doubt
    assert not measured(2e-7, 2e-7, 2e-7, cold=False).doubt


@pytest.mark.parametrize(
    ("b", "verdict"),
    [
        ((1.0, 1.01, 1.02), "SAME"),
        ((2.0, 2.1, 2.2), "SLOWER"),
        ((0.5, 0.51, 0.52), "FASTER"),
        ((0.9, 1.2, 1.5), "AMBIGUOUS"),
    ],
    ids=str,
)
def test_the_second_arm_is_judged_as_compare_does(b: tuple[float, ...], verdict: str) -> None:
    pair = paired(measured(1.0, 1.01, 1.02), measured(*b))
    assert pair.time == verdict and bool(pair.why) == (verdict == "AMBIGUOUS")


def test_bytes_of_two_arms_are_compared_where_both_are_known() -> None:
    def same(a: str, b: str) -> Pair:
        return paired(measured(1.0, 1.0, 1.0, digest=a), measured(1.0, 1.0, 1.0, digest=b))

    assert same("x", "x").same_bytes is True
    assert same("x", "y").same_bytes is False
    assert same("x", "").same_bytes is None


@pytest.mark.parametrize("word", ["threads", "=3", "threads=", "threads=fast"])
def test_an_arm_is_a_name_and_a_number(word: str) -> None:
    with pytest.raises(SpecError, match="NAME=NUMBER"):
        arms_of([word])
    assert arms_of(["threads=256", "loads=4"]) == {"threads": 256, "loads": 4}


def test_a_strided_case_is_timed_on_strided_rows() -> None:
    spec, case = one("linear_fp8", "rows")
    assert case.pad
    (copy,) = kernels.copies(spec, case, HostDevice(), 0, 1)
    assert copy.arrays["x"].array.strides[0] > 2 * case.axes["K"]
    assert registry.spec("linear_fp8").arg("x").strided
