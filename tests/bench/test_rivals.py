"""Rivals answer to the same oracles before they are timed.

What needs torch or Triton is skipped where they are not installed; Triton runs in its interpreter,
which TRITON_INTERPRET=1 chooses before it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4 import registry
from dsv4.axes import Shape
from dsv4.errors import Refusal
from dsv4.runtime.hostdevice import HostDevice
from lab.bench import rivals as bench
from lab.bench.chosen import shape_of
from lab.bench.combined import as_the_engine_runs_it
from lab.bench.kernels import open_side
from lab.cases import Case, cases, inputs_of
from lab.oracles import Reference, reference
from lab.result import ERROR, FAIL, PASS
from lab.rivals import Candidate, Prepared, Rival, load_torch, outside, rivals, rivals_of
from lab.rivals.linears import _one_scale
from lab.rivals.selection import wrong_selection
from lab.rivals.tensors import dequantised, quantised
from oracle.formats import decode, encode

ROOT = Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRITON = HAS_TORCH and importlib.util.find_spec("triton") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="torch or Triton is not installed")
POWERS = {"scales": 0.25}


def fixed(right: bool) -> Rival:
    """A rival of cast_bf16 in NumPy, right or off by a bit."""

    def make(inputs: Mapping[str, np.ndarray]) -> Prepared:
        y = np.empty(len(inputs["x"]))

        def run() -> None:
            y[:] = decode(encode(inputs["x"].astype(np.float64), "bf16"), "bf16")
            y[3] += 0.0 if right else 1.0

        return Prepared(run, lambda: y.copy(), 6 * len(y), 6 * len(y))

    return Rival(
        name="numpy",
        kernels=("cast_bf16",),
        output="y",
        needs=("numpy",),
        note="in NumPy",
        sees=lambda inputs, s: dict(inputs),
        candidates=lambda torch, device, inputs, s: [Candidate("plain", lambda: make(inputs))],
        wrong=lambda got, wanted, inputs, s: outside(
            got, wanted.value, 2.0**-8 * np.abs(wanted.value), "one rounding"
        ),
    )


def versus(
    monkeypatch: pytest.MonkeyPatch, rival: Rival, kernel: str = "cast_bf16", case: str = "tail"
) -> Any:
    monkeypatch.setattr(bench, "rivals_of", lambda kernel: [rival])
    monkeypatch.setattr(bench, "load_torch", lambda: None)
    chosen = next(c for c in cases(kernel) if c.name == case)
    return bench.bench_rivals(registry.spec(kernel), chosen, HostDevice(), None, samples=3)


def test_a_rival_that_is_right_is_timed_in_turns_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, theirs), (pair,) = versus(monkeypatch, fixed(right=True))
    assert ours.verdict == theirs.verdict == PASS
    assert len(ours.timing.samples_s) == len(theirs.timing.samples_s) == 3
    assert pair.rival == "numpy" and pair.time and pair.same_bytes is None
    assert theirs.facts["kernel"] == "rival: numpy" and theirs.more["call"] == "plain"


def test_a_rival_that_is_wrong_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, theirs), (pair,) = versus(monkeypatch, fixed(right=False))
    assert ours.timing is not None and theirs.verdict == FAIL and theirs.timing is None
    assert "1 of 257 elements leave one rounding, the worst at (3,)" in theirs.facts["reasons"][0]
    assert not pair.time and "A did not pass" in pair.why


def chunked(case: str) -> tuple[Any, str]:
    spec = registry.spec("attention_sink_f32")
    chosen = next(c for c in cases(spec.name) if c.name == case)
    whole = open_side(spec, chosen, HostDevice(), {}, 0)
    return as_the_engine_runs_it(spec, chosen, HostDevice(), 0, whole)


def test_attention_is_timed_in_chunks_that_leave_the_bytes_of_the_judged_kernel() -> None:
    side, words = chunked("window 127")
    assert words == "attention_sink_split_f32 and attention_sink_join_f32"
    assert side.result.verdict == PASS and side.again is not None
    side.copies[0].arrays["o"].array[...] = 0
    side.again.replay()
    assert side.copies[0].arrays["o"].array.any()


def test_chunks_that_leave_other_bytes_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.bench.combined.digest_of", lambda *given: "other")
    side, _ = chunked("window 127")
    assert side.result.verdict == FAIL and side.again is None


def test_what_a_library_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Prepared:
        raise ValueError("Invalid scaling configuration.\nmore")

    rival = replace(fixed(True), candidates=lambda *given: [Candidate("blocks", refuse)])
    (_, theirs), _ = versus(monkeypatch, rival)
    assert theirs.verdict == ERROR
    assert theirs.facts["reasons"] == ["blocks: ValueError: Invalid scaling configuration."]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, theirs), _ = versus(monkeypatch, replace(fixed(True), needs=("no_such_package",)))
    assert theirs.facts["reasons"] == ["no_such_package is not installed"]


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Refusal) as refused:
        load_torch()
    assert "dsv4-lab[rivals]" in str(refused.value) and "\n" not in str(refused.value)


def test_naming_rivals_loads_neither_torch_nor_triton() -> None:
    program = (
        "import sys; from lab.rivals import rivals; assert len(rivals()) >= 7;"
        " assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_every_rival_stands_beside_a_kernel_of_ours() -> None:
    for rival in rivals():
        outputs = [{a.name for a in registry.spec(k).outputs} for k in rival.kernels]
        assert all(rival.output in names for names in outputs)
    assert [r.name for r in rivals_of("topk")] == ["torch.topk"]


def test_quantised_rows_keep_their_largest_value_in_range() -> None:
    # 448 * 2 needs a scale of 2; 1 of the second group is 256 under 2^-8: 448 / 256 < 2.
    x = np.zeros((1, 256))
    x[0, 5], x[0, 200] = 896.0, 1.0
    codes, scales = quantised(x, 128)
    assert scales.tolist() == [[2.0, 2.0**-8]]
    back = decode(codes, "e4m3") * np.repeat(scales, 128, axis=1)
    assert back[0, 5] == 896.0 and back[0, 200] == 1.0


def test_one_scale_for_a_matrix_is_what_the_oracle_is_told() -> None:
    spec = registry.spec("linear_fp8")
    case = Case("small", M=2, N=16, K=64, **POWERS)
    inputs = inputs_of(spec, case, 0)
    seen = _one_scale(inputs, shape_of(spec, case))
    assert (seen["scales"] == 1).all() and (inputs["scales"] != 1).all()
    given, taken = (decode(i["x"], "bf16") for i in (inputs, seen))
    largest = np.abs(given).max()
    assert np.abs(given - taken).max() <= largest / 448 * 2 * 16  # half of 2^5, the widest spacing


def test_blocks_of_scales_are_widened_to_rows_and_columns() -> None:
    codes = np.full((130, 200), 0x38, np.uint8)  # 1.0
    wide = dequantised(codes, np.array([[1.0, 2.0], [4.0, 8.0]], np.float32))
    assert [wide[0, 0], wide[0, 199], wide[129, 0], wide[129, 199]] == [1, 2, 4, 8]


def test_a_selection_may_differ_in_ties_only() -> None:
    shape = Shape(dict(T=1, N=5, S=3, offset=10))
    inputs = {
        "score": np.array([[1.0, 3.0, 2.0, 3.0, 9.0]], np.float32),
        "visible": np.array([4], np.int32),
    }
    wanted = Reference(np.array([[11, 13, 12]]))

    def wrong(*ids: int) -> str:
        return wrong_selection(np.array([ids]), wanted, inputs, shape)

    assert not wrong(1, 3, 2) and not wrong(3, 1, 2)
    assert "other scores" in wrong(1, 3, 0)
    assert "other scores" in wrong(4, 1, 3)  # not visible
    assert "twice" in wrong(1, 1, 2)


def on_cpu(rival: Rival, kernel: str, case: Case) -> str:
    """What is wrong with a rival's first call, by the oracle."""
    spec = registry.spec(kernel)
    shape = shape_of(spec, case)
    seen = rival.sees(inputs_of(spec, case, 0), shape)
    prepared = rival.candidates(load_torch(), "cpu", seen, shape)[0].make()
    prepared.run()
    wanted = reference(spec, seen, shape)[rival.output]
    assert prepared.size_bytes > 0
    return rival.wrong(prepared.output(), wanted, seen, shape)


@needs_torch
@pytest.mark.parametrize("name", ["torch.mm bf16", "torch._scaled_mm, one scale"])
@pytest.mark.parametrize("rows", [1, 3])
def test_products_of_torch_are_what_the_oracle_says(name: str, rows: int) -> None:
    rival = next(r for r in rivals() if r.name == name)
    assert on_cpu(rival, "linear_fp8", Case("c", M=rows, N=144, K=256, **POWERS)) == ""


@needs_torch
def test_a_matrix_that_bf16_cannot_hold_is_refused() -> None:
    rival = next(r for r in rivals() if r.name == "torch.mm bf16")
    with pytest.raises(Refusal, match="no powers of two"):
        on_cpu(rival, "linear_fp8", Case("c", M=1, N=16, K=128, scales=0.3))


@needs_torch
def test_the_head_through_torch_is_what_the_oracle_says_of_rounded_inputs() -> None:
    rival = next(r for r in rivals() if r.name == "torch.mm bf16 head")
    assert on_cpu(rival, "lm_head_f32", Case("c", T=2, V=100, D=256)) == ""


@needs_torch
@pytest.mark.parametrize("case", ["ties 0.75", "lengths", "minus infinity", "decode"])
def test_the_selection_of_torch_is_the_oracles_but_for_ties(case: str) -> None:
    chosen = next(c for c in cases("topk") if c.name == case)
    assert on_cpu(rivals_of("topk")[0], "topk", chosen) == ""


@needs_triton
@pytest.mark.parametrize(
    ("name", "kernel", "content"),
    [
        ("Triton FP8 GEMV", "linear_fp8", dict(M=1, N=70, K=512, **POWERS)),
        ("Triton FP8 GEMV", "linear_fp8", dict(M=3, N=70, K=256, **POWERS)),
        (
            "Triton attention",
            "attention_sink_f32",
            dict(T=2, H=3, K=64, N=50, S=70, scale=0.125, ids="holes"),
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_kernels_of_triton_are_what_the_oracle_says(
    name: str, kernel: str, content: dict[str, Any], tmp_path: Path
) -> None:
    # In a process of its own: the interpreter is chosen when Triton is imported.
    program = (
        "import sys; sys.path[:0] = ['.']\n"
        "from lab.cases import Case\nfrom lab.rivals import rivals\n"
        "from tests.bench.test_rivals import on_cpu\n"
        f"rival = next(r for r in rivals() if r.name == {name!r})\n"
        "from lab.cases.attention import listed\n"
        f"content = {content!r}\n"
        "content |= {'ids': listed(holes=0.3)} if 'ids' in content else {}\n"
        f"print(on_cpu(rival, {kernel!r}, Case('c', **content)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
