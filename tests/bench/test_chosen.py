"""What is timed: every kernel, at the model's sizes, by one declaration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import SpecError
from lab.bench.chosen import BENCHED, benched, counted_bytes, plan, shape_of, with_options
from lab.cases import cases


@pytest.mark.parametrize("kernel", registry.kernels())
def test_every_kernel_is_timed_at_some_case_of_its_own(kernel: str) -> None:
    chosen = benched(kernel)
    assert chosen and all(case in cases(kernel) for case in chosen)


@pytest.mark.parametrize("name", BENCHED)
def test_every_declared_name_is_a_case_of_a_kernel_there(name: str) -> None:
    specs = registry.match([name])
    known = {case.name for spec in specs for case in cases(spec.name)}
    assert set(BENCHED[name]) <= known


def test_a_kernel_without_a_line_is_timed_where_it_moves_the_most_bytes() -> None:
    spec = registry.spec("scale_gate")
    assert spec.name not in BENCHED and spec.family not in BENCHED
    largest = max(counted_bytes(spec, case) for case in cases(spec.name))
    assert [counted_bytes(spec, c) for c in benched(spec.name)] == [largest]


def test_a_host_times_the_small_ones_of_them() -> None:
    everywhere, on_host = plan(["linear_fp8"]), plan(["linear_fp8"], on_host=True)
    assert {c.name for _, c in on_host} == {"wkv", "wq_a"}
    assert len(everywhere) > len(on_host)


def test_a_named_case_is_timed_whatever_its_level() -> None:
    assert [c.level for _, c in plan(["lm_head"], names=["vocabulary"])] == 3 * ["stress"]
    assert {c.axes["M"] for _, c in plan(["linear_fp8"], names=["wq_b"], patterns=["M>4"])} == {8}


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(SpecError, match="no case 'nothing'"):
        plan(["linear_fp8"], names=["nothing"])
    case, spec = benched("roof_read")[0], registry.spec("roof_read")
    with pytest.raises(SpecError, match="threads=300"):
        with_options(spec, case, {"threads": 300})
    with pytest.raises(SpecError, match="its options are none"):
        with_options(registry.spec("cast_bf16"), benched("cast_bf16")[0], {"threads": 256})


def test_an_option_reaches_the_shape() -> None:
    case, spec = benched("roof_read")[0], registry.spec("roof_read")
    assert shape_of(spec, with_options(spec, case, {"threads": 256})).threads == 256


def test_every_kernel_has_a_benchmark_for_pytest() -> None:
    tests = Path(__file__).parents[1]
    told = "".join(p.read_text(encoding="utf-8") for p in tests.glob("test_*.py"))
    named = set(re.findall(r'speed_tests\(\s*"(\w+)"', told))
    assert set(registry.kernels()) - named == set()
