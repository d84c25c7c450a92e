"""The kernel tables of the README, from kernel-diff documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4 import registry
from dsv4.errors import Refusal
from lab.report import readme


def result(kernel: str, case: str, **more: Any) -> dict[str, Any]:
    """One element of kernel-diff's results."""
    output = {"contract": "bit_exact", "n": 100, "identical": 100, "bound_use": 0.25}
    plain = {
        "kernel": kernel,
        "case": case,
        "axes": {"M": 1, "N": 4096},
        "verdict": "PASS",
        "time_s": 2e-5,
        "bytes": 64 << 20,
        "bandwidth_fraction": 0.7,
        "outputs": [output],
    }
    return {**plain, **more}


def document(*results: dict[str, Any]) -> dict[str, Any]:
    """A kernel-diff document of an H200."""
    return {
        "schema": 1,
        "command": "kernel-diff",
        "env": {
            "device": "NVIDIA H200",
            "cuda": {"nvrtc": "12.9"},
            "gpu_settings": {"driver": "580.1"},
            "git": {"commit": "4f1c2ab99"},
        },
        "summary": {"kernels": 1, "cases": len(results), "pass": 1, "fail": 0, "error": 0},
        "results": list(results),
    }


def row(text: str, start: str) -> list[str]:
    """The cells of the first table row that starts so."""
    line = next(li for li in text.splitlines() if li.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_summary_names_card_driver_compiler_commit_and_worst_case() -> None:
    close = result("rope", "tail", outputs=[{"contract": "ulp(2)", "n": 1, "identical": 1,
                                             "bound_use": 0.93}])  # fmt: skip
    text = readme.tables([document(result("cast_bf16", "one"), close)])
    assert text.startswith("**NVIDIA H200** (driver 580.1, nvrtc 12.9, commit 4f1c2ab): 1 kernels")
    assert "Worst bound use 0.93 (rope, tail)." in text


def test_a_kernel_shows_its_largest_timed_case_and_all_its_shares() -> None:
    small = result("cast_bf16", "one", bytes=10, time_s=1e-6, axes={"N": 1})
    large = result("cast_bf16", "prefill", axes={"N": 8388608})
    untimed = result("cast_bf16", "huge", bytes=1 << 40, time_s=None)
    large["outputs"] = [{"contract": "bit_exact", "n": 300, "identical": 299, "bound_use": 0.5}]
    text = readme.tables([document(small, large, untimed)])
    assert row(text, "`cast_bf16`") == [
        "`cast_bf16`",
        "bit_exact",
        "PASS",
        "99.800 %",
        "0.50",
        "N=8388608",
        "20.0 us",
        "3355",
        "70 %",
    ]


def test_one_bad_case_decides_the_verdict_of_its_kernel() -> None:
    text = readme.tables([document(result("x", "a"), result("x", "b", verdict="FAIL"))])
    assert row(text, "`x`")[2] == "FAIL"


def test_rounding_never_calls_different_bytes_identical() -> None:
    outputs = [{"contract": "c", "n": 10**9, "identical": 10**9 - 1, "bound_use": 0}]
    assert "99.999 %" in readme.tables([document(result("x", "a", outputs=outputs))])


def test_every_large_linear_has_a_row_with_its_bandwidth() -> None:
    results = [
        result("linear_fp8", "wq_b"),
        result("linear_fp8", "tail", bytes=1000),
        result("linear_bf16", "head", time_s=None),
    ]
    text = readme.tables([document(*results)])
    linears = text.partition("| linear |")[2]
    assert "wq_b" in linears and "tail" not in linears and "head" not in linears


def test_long_contract_formulas_are_named_by_their_kind() -> None:
    outputs = [{"contract": "dot(16*ceil(K/512)+5)", "n": 1, "identical": 1, "bound_use": 0}]
    assert row(readme.tables([document(result("x", "a", outputs=outputs))]), "`x`")[1] == "dot"


def test_without_a_measurement_the_declared_kernels_are_listed() -> None:
    text = readme.tables([])
    assert all(f"`{name}`" in text for name in registry.kernels())


def test_only_the_part_between_the_markers_changes() -> None:
    begins, ends = (readme.KERNELS[0], readme.RUNS[0]), (readme.KERNELS[1], readme.RUNS[1])
    old = f"a\n{begins[0]}\nold\n{ends[0]}\nb\n{begins[1]}\nold\n{ends[1]}\nc\n"
    new = readme.replaced(old, "kernels", "models")
    assert new == (
        f"a\n{begins[0]}\n\nkernels\n\n{ends[0]}\nb\n{begins[1]}\n\nmodels\n\n{ends[1]}\nc\n"
    )
    assert readme.replaced(new, "kernels", "models") == new
    with pytest.raises(Refusal, match="markers"):
        readme.replaced("nothing here", "kernels", "models")


def test_what_is_no_document_is_refused_by_name(tmp_path: Path) -> None:
    assert readme.read_documents(tmp_path) == []
    (tmp_path / "a.json").write_text(json.dumps(document(result("x", "a"))))
    assert len(readme.read_documents(tmp_path)) == 1
    (tmp_path / "b.json").write_text('{"command": "list"}')
    with pytest.raises(Refusal, match=r"b\.json is no kernel-diff document"):
        readme.read_documents(tmp_path)
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(Refusal, match=r"b\.json is not JSON"):
        readme.read_documents(tmp_path)
