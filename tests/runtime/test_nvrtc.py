"""NVRTC to cubin: options, the include-aware cache, and what the assembler says."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import CompileError, DeviceError
from dsv4.runtime import nvrtc
from dsv4.runtime.sources import cuda_root, forget_sources
from lab import testing


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the kernel sources and an empty cache, both this test's own."""
    try:
        nvrtc.nvrtc_version()
    except DeviceError as error:
        pytest.skip(f"needs NVRTC: {str(error).splitlines()[0]}")
    copy = tmp_path / "cuda"
    shutil.copytree(cuda_root(), copy)
    monkeypatch.setenv("DSV4_CUDA_ROOT", str(copy))
    monkeypatch.setenv("DSV4_CACHE", str(tmp_path / "cache"))
    forget_sources()
    yield copy
    monkeypatch.undo()
    forget_sources()


def test_a_second_compile_comes_from_the_cache_with_the_same_bytes(sources: Path) -> None:
    first = nvrtc.compile_cubin(sources / "cast.cu", defines={}, arch="sm_90a")
    second = nvrtc.compile_cubin(sources / "cast.cu", defines={}, arch="sm_90a")
    assert (first.cached, second.cached) == (False, True)
    assert first.digest == second.digest
    assert second.resources()["cast_bf16"].registers > 0


def test_an_edited_header_is_seen(sources: Path) -> None:
    nvrtc.compile_cubin(sources / "cast.cu", defines={}, arch="sm_90a")
    header = sources / "common" / "convert.cuh"
    text = header.read_text()
    header.write_text(text.replace("0x7fffu +", "0x7ffeu +"))
    assert header.read_text() != text
    forget_sources()
    edited = nvrtc.compile_cubin(sources / "cast.cu", defines={}, arch="sm_90a")
    assert not edited.cached


def test_another_constant_or_architecture_is_another_build(sources: Path) -> None:
    build = nvrtc.compile_cubin(sources / "cast.cu", defines={"UNUSED": 1}, arch="sm_90a")
    other = nvrtc.compile_cubin(sources / "cast.cu", defines={"UNUSED": 2}, arch="sm_90a")
    older = nvrtc.compile_cubin(sources / "cast.cu", defines={"UNUSED": 1}, arch="sm_80")
    assert len({build.path, other.path, older.path}) == 3


def test_an_error_names_the_source_its_line_and_the_constants(sources: Path) -> None:
    source = sources / "cast.cu"
    source.write_text(source.read_text().replace("f32_to_bf16(x[i])", "nonsense(x[i])"))
    line = next(n for n, t in enumerate(source.read_text().splitlines(), 1) if "nonsense" in t)
    forget_sources()
    with pytest.raises(CompileError, match=rf"cast\.cu\({line}\)") as caught:
        nvrtc.compile_cubin(source, defines={"WIDTH": 3}, arch="sm_90a")
    assert "sm_90a (-DWIDTH=3)" in str(caught.value)


def test_the_cubin_is_a_whole_elf_file(sources: Path) -> None:
    build = nvrtc.compile_cubin(sources / "cast.cu", defines={}, arch="sm_90a")
    binary = build.path.read_bytes()
    table, entry_bytes, entries = struct.unpack_from("<32xQ14xHH", binary)
    assert binary[:4] == b"\x7fELF"
    assert len(binary) == table + entry_bytes * entries


def test_subnormals_are_kept_and_products_are_not_contracted(sources: Path) -> None:
    probe = sources / "flags.cu"
    probe.write_text(
        'extern "C" __global__ void flags(float* x) { x[0] = x[0] * x[1] + x[2] / sqrtf(x[3]); }\n'
    )
    ptx = nvrtc.compile_ptx(probe, defines={}, arch="sm_90a")
    for instruction in ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert instruction in ptx
    assert ".ftz" not in ptx
    assert "fma" not in ptx


SPILLING = """extern "C" __global__ void __launch_bounds__(1024) spilling(float* x) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + (threadIdx.x + i) % 1024] = kept[i];
}
extern "C" __global__ void quiet(float* x) { __shared__ float s[64]; s[threadIdx.x] = x[0];
  __syncthreads(); x[1] = s[63 - threadIdx.x]; }
"""


def test_spilled_bytes_are_read_from_the_assembler(sources: Path) -> None:
    probe = sources / "spilling.cu"
    probe.write_text(SPILLING)
    used = nvrtc.compile_cubin(probe, defines={}, arch="sm_90a").resources()
    assert used["spilling"].registers == 64
    assert used["spilling"].stack_bytes > 0 and used["spilling"].spill_bytes > 0
    assert used["quiet"].shared_bytes == 256 and used["quiet"].spill_bytes == 0


def test_lines_that_name_no_kernel_leave_its_whole_stack_as_spilled(sources: Path) -> None:
    probe = sources / "spilling.cu"
    probe.write_text(SPILLING)
    built = nvrtc.compile_cubin(probe, defines={}, arch="sm_90a")
    mixed = (
        "ptxas info    : Function properties for quiet\n"
        "ptxas info    : Function properties for spilling\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas         .     9 bytes stack frame, 7 bytes spill stores, 7 bytes spill loads\n"
    )
    # The line behind the name is another kernel's, as its stack shows.
    used = replace(built, log=mixed).resources()
    assert used["spilling"].spill_bytes == used["spilling"].stack_bytes > 0
    assert used["quiet"].spill_bytes == 0


@pytest.mark.gpu
def test_the_driver_says_the_same_as_the_file() -> None:
    device, spec = testing.cuda(), registry.spec("argmax")
    told = device.attributes(spec, {})
    read = device.build(spec, {}).resources()[spec.symbol]
    assert (told.registers, told.shared_bytes) == (read.registers, read.shared_bytes)
