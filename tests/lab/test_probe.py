"""`probe`: stages join by name and index, planted faults are found at their line, no trace else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dsv4 import registry
from dsv4.errors import DeviceError, SpecError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.nvrtc import compile_cubin
from dsv4.runtime.sources import cuda_root, forget_sources, include_closure
from lab.builds import constant_sets
from lab.cases import cases
from lab.debug.probe import Probed, probe
from lab.debug.stages import probe_lines, read_at, stages_of
from lab.debug.stand import Stand
from lab.tools import cubin
from tests.lab.planted import lab, planted

PROBED = ("rms_norm", "act_quant", "router", "linear_fp8", "attention")
KERNELS = [
    k.spec.name
    for k in registry.kernels().values()
    if k.spec.family in PROBED and "join" not in k.spec.name and "split" not in k.spec.name
]


def without_probes(text: str) -> str:
    """The source with every call of PROBE and PROBED gone; line numbers stay."""
    while match := re.search(r"\bPROBED?\(", text):
        end, depth = match.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[: match.start()] + "\n" * text[match.start() : end].count("\n") + text[end:]
    return text


def stand_of(kernel: str, name: str) -> Stand:
    """A named case of a kernel on the host."""
    case = next(c for c in cases(kernel) if c.name == name)
    return Stand(registry.spec(kernel), case, HostDevice())


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_stage_of_a_right_kernel_is_reached_and_no_more_than_rounding(kernel: str) -> None:
    small = [c for c in cases(kernel) if c.check][:12]
    seen: set[str] = set()
    for case in small:
        found = probe(Stand(registry.spec(kernel), case, HostDevice()))
        assert found.first is None, (case.label, found.first)
        seen |= {s.name for s in found.stages if s.identical}
    assert {s.name for s in found.stages} == seen


@pytest.mark.parametrize("family", PROBED)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_a_product_build_has_no_trace_of_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, arch: str
) -> None:
    spec = next(k.spec for k in registry.kernels().values() if k.spec.family == family)
    constants = constant_sets(spec)[-1]
    try:
        product = build(family, constants, arch)
        probed = build(family, {**constants, "LAB_PROBE": 1}, arch)
    except DeviceError as error:
        pytest.skip(f"needs NVRTC: {error}")
    shutil.copytree(cuda_root(), tmp_path / "cuda")
    # Probes stand in headers too, but in the one that defines them there are none. Line numbers
    # stay: the assembler's schedule depends on them.
    texts = {
        bare: bare.read_text()
        for bare in include_closure(tmp_path / "cuda" / f"{family}.cu")
        if bare.name != "probe.cuh"
    }
    assert any("PROBE(" in text for text in texts.values())
    for bare, text in texts.items():
        bare.write_text(without_probes(text))
    monkeypatch.setenv("DSV4_CUDA_ROOT", str(tmp_path / "cuda"))
    forget_sources()
    try:
        assert cubin.differing(product, build(family, constants, arch)) == []
    finally:
        monkeypatch.undo()
        forget_sources()
    assert b"lab_probe" not in product and b"lab_probe" in probed


def build(family: str, constants: dict[str, int], arch: str) -> bytes:
    """A cubin with line numbers, as products have them."""
    return compile_cubin(
        cuda_root() / f"{family}.cu", defines=constants, arch=arch
    ).path.read_bytes()


def test_a_wrong_scale_is_found_at_its_stage_and_line(tmp_path: Path) -> None:
    wrong = planted(tmp_path, "act_quant.cu", "const int k = scale_exponent(amax, mantissa)",
                    "const int k = scale_exponent(amax, mantissa) + (blockIdx.x == 5)")  # fmt: skip
    done = lab(tmp_path, "--json", "probe", "act_quant_fp8", "-c", "verify", "--backend", "host",
               "--at", "T=5,K=300", DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["first"] == "exponent"
    by_name = {s["name"]: s for s in document["stages"]}
    assert not by_name["amax"]["differs"]
    exponent = by_name["exponent"]
    assert exponent["element"]["where"] == {"T": 5, "ceil(K/group)": 2}
    assert exponent["element"]["got"] == exponent["element"]["oracle"] + 1
    source = (tmp_path / "cuda" / "act_quant.cu").read_text().splitlines()
    line = int(exponent["place"].partition(":")[2])
    assert 'PROBE("exponent"' in source[line - 1]


def test_a_missing_barrier_shows_in_the_stage_that_reads_too_early(tmp_path: Path) -> None:
    wrong = planted(tmp_path, "router.cu", "        keys[e] = score + bias[e];",
                    "        keys[e] = score;")  # fmt: skip
    done = lab(tmp_path, "probe", "router", "-p", "E>=32", "--backend", "host",
               DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert done.returncode == 1
    assert "first difference: stage key at router.cu:" in done.stdout


def test_a_stage_that_is_not_reached_is_told(tmp_path: Path) -> None:
    wrong = planted(tmp_path, "rms_norm.cu", "if (threadIdx.x == 0) {",
                    "if (threadIdx.x == 0 && blockIdx.x != 1) {")  # fmt: skip
    done = lab(tmp_path, "probe", "rms_norm", "-p", "T=7", "--backend", "host",
               DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert done.returncode == 1
    assert "not reached" in done.stdout and "1 were never reached" in done.stdout


def test_an_axis_in_blocks_is_followed_from_the_element() -> None:
    found = probe(stand_of("act_quant_fp8", "verify"), at={"T": 3, "K": 1000})
    amax = next(s for s in found.stages if s.name == "amax")
    assert amax.shown is not None
    assert dict(amax.shown.where) == {"T": 3, "ceil(K/group)": 1000 // 128}


def test_more_records_than_expected_are_all_brought_home(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.debug import probe as module

    monkeypatch.setattr(module, "_SPARE_RECORDS", -190)  # room for two of 192
    found = probe(stand_of("act_quant_fp8", "verify"))
    assert found.records == 192
    assert found.first is None


def test_stages_name_their_axes_and_their_lines() -> None:
    stand = stand_of("rms_norm", "decode")
    assert [s.axes for s in stages_of(stand).values()] == [("T",), ("T",)]
    assert set(probe_lines(stand.spec)) == {"mean_square", "factor"}


def test_outputs_come_last_and_are_judged_by_their_contract() -> None:
    found: Probed = probe(stand_of("rms_norm", "verify"))
    assert found.stages[-1].name == "y"
    assert np.isfinite(found.stages[-1].off)


@pytest.mark.parametrize("text", ["T", "T=x", "T=-1", "=3"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="T=3,D=448"):
        read_at(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "rms_norm", "--at", "Q=1"], ["Q=1", "axes"]),
        (["probe", "rms_norm", "-c", "decode", "--at", "T=9"], ["T is 1"]),
        (["probe", "rms_norm", "--stages", "nothing"], ["no stage nothing", "mean_square"]),
        (["probe", "cast_bf16"], ["no stage in common", "cast.cu"]),
        (["probe", "rms_norm", "-p", "T=99"], ["no case matches"]),
        (["probe", "rms_*"], ["names 4 kernels"]),
    ],
)
def test_bad_input_is_refused_in_words(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = lab(tmp_path, *arguments, "--backend", "host")
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
