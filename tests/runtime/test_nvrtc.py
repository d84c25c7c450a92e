"""NVRTC to cubin: options, the include-aware cache, and what the assembler says."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from dsv4.errors import CompileError, DeviceError
from dsv4.runtime import nvrtc
from dsv4.runtime.sources import cuda_root, forget_sources


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


def test_spilled_bytes_are_read_from_the_assembler(sources: Path) -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas         .     64 bytes stack frame, 48 bytes spill stores, 32 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 2048 bytes smem\n"
    )
    build = nvrtc.Cubin(Path("k.cubin"), "", "sm_90a", log, True)
    assert build.resources() == {"k": nvrtc.Resources(255, 2048, 64, 80)}


def test_kernels_assembled_side_by_side_are_told_apart() -> None:
    log = (
        "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
        "ptxas info    : Function properties for first\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 18 registers, used 0 barriers\n"
        "ptxas info    : Function properties for second\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 20 registers, used 0 barriers\n"
    )
    build = nvrtc.Cubin(Path("k.cubin"), "", "sm_90a", log, True)
    assert build.resources() == {
        "first": nvrtc.Resources(18, 0, 0, 0),
        "second": nvrtc.Resources(20, 0, 8, 8),
    }
