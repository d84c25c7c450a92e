"""Building for the host: errors, cache, compilers, and the checks of a launch's arguments."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dsv4.errors import CompileError, KernelFault, LaunchError, SpecError
from dsv4.runtime import host_build, host_compiler, sources
from dsv4.runtime.elf import sections
from dsv4.runtime.host import HostModule, build
from dsv4.runtime.sources import cuda_root, digest, include_closure, steady_sources

KERNELS = Path(__file__).parent / "kernels"
BROKEN = Path(__file__).parent / "broken"
SCALE = """#include "scale.cuh"
extern "C" __global__ void __launch_bounds__(THREADS)
scale(const float* x, float* y, int n, double by, const unsigned short* bits) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = scaled(x[i], by) + (bits ? bits[0] : 0);
}
"""
HEADER = (
    "__device__ float scaled(float value, double by) { return (float)(value * by * FACTOR); }\n"
)


@pytest.fixture
def scale_source(tmp_path: Path) -> Path:
    (tmp_path / "scale.cuh").write_text(HEADER)
    source = tmp_path / "scale.cu"
    source.write_text(SCALE)
    return source


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSV4_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "host"


def scale_module(source: Path, factor: float = 1.5) -> HostModule:
    return build(source, defines={"THREADS": 64, "FACTOR": factor})


def scaled(module: HostModule, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    bits = np.zeros(1, np.uint16)
    module.launch(
        "scale",
        grid=(x.size // 64 + 1, 1, 1),
        block=(64, 1, 1),
        args=[x, y, np.int32(x.size), np.float64(2.0), bits],
    )
    return y


def test_a_signature_spells_pointers_and_scalars(scale_source: Path) -> None:
    module = scale_module(scale_source)
    assert module.symbols == ("scale",)
    assert module.signature("scale") == ("Pf4", "pf4", "i4", "f8", "Pu2")
    assert (scaled(module, np.arange(100, dtype=np.float32)) == 3 * np.arange(100)).all()


def test_build_constants_do_not_reach_the_shim(tmp_path: Path) -> None:
    source = tmp_path / "names.cu"
    source.write_text('extern "C" __global__ void fill(int* x) { x[0] = N + T + K + I + A; }\n')
    module = build(source, defines={"N": 1, "T": 2, "K": 3, "I": 4, "A": True})
    x = np.zeros(1, np.int32)
    module.launch("fill", grid=(1, 1, 1), block=(1, 1, 1), args=[x])
    assert x[0] == 11


@pytest.mark.parametrize(("name", "value"), [("9LIVES", 1), ("EPS", float("inf"))])
def test_a_constant_that_c_cannot_spell_is_refused(
    name: str, value: float, scale_source: Path
) -> None:
    with pytest.raises(SpecError, match=name):
        build(scale_source, defines={name: value})


def test_a_kernel_behind_a_condition_exists_only_when_it_holds(tmp_path: Path) -> None:
    source = tmp_path / "either.cu"
    source.write_text(
        "#define KERNEL(name) \\\n"
        '    extern "C" __global__ void name(int* x)\n'
        "#if FAST\nKERNEL(fast) { x[0] = 1; }\n#else\nKERNEL(slow) { x[0] = 2; }\n#endif\n"
        '// extern "C" __global__ void commented(int* x) {}\n'
    )
    assert build(source, defines={"FAST": 1}).symbols == ("fast",)
    assert build(source, defines={"FAST": 0}).symbols == ("slow",)


@pytest.mark.parametrize("mode", ["run", "check"])
def test_a_compile_error_names_the_cu_file_and_line(tmp_path: Path, mode: str) -> None:
    source = tmp_path / "typo.cu"
    source.write_text(
        'extern "C" __global__ void\n\ntypo(float* x) {\n    x[0] = thraedIdx.x;\n}\n'
    )
    with pytest.raises(CompileError) as caught:
        build(source, defines={}, mode=mode)
    assert f"{source}:4:" in str(caught.value) and "thraedIdx" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("__device__ int x;\n", "no kernel was found"),
        ('extern "C" __global__ void k(float* x) { x[0] = INFINITY; }\n', "INFINITY"),
        (
            'extern "C" __global__ void k(float* x) { extern __shared__ float s[], t[]; }\n',
            "dynamic shared memory",
        ),
        ('#include <cuda_bf16.h>\nextern "C" __global__ void k(int* x) {}\n', "include cannot"),
        ('#define H "a.cuh"\n#include H\nextern "C" __global__ void k(int* x) {}\n', ":2"),
        ('#include "nowhere.cuh"\nextern "C" __global__ void k(int* x) {}\n', "does not exist"),
    ],
)
def test_what_cannot_run_on_both_backends_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    source = tmp_path / "refused.cu"
    source.write_text(text)
    with pytest.raises(CompileError, match=complaint):
        build(source, defines={})


def test_a_missing_compiler_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale_source: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DSV4_CXX", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    host_compiler.forget_compilers()
    with pytest.raises(CompileError) as caught:
        scale_module(scale_source)
    for way in ("DSV4_CXX", "g++", "clang++", "ziglang"):
        assert way in str(caught.value)
    host_compiler.forget_compilers()


def test_dsv4_cxx_must_name_an_existing_compiler(
    monkeypatch: pytest.MonkeyPatch, scale_source: Path
) -> None:
    monkeypatch.setenv("DSV4_CXX", "no-such-compiler --fast")
    with pytest.raises(CompileError, match="no-such-compiler"):
        scale_module(scale_source)


def test_dsv4_cxx_may_carry_options(
    monkeypatch: pytest.MonkeyPatch, scale_source: Path, private_cache: Path
) -> None:
    first = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if first is None:
        pytest.skip("no g++, clang++ or c++ is here to give an option to")
    monkeypatch.setenv("DSV4_CXX", f"{first} -DEXTRA=1")
    assert host_compiler.find_compiler().compile == (first, "-DEXTRA=1")
    assert (scaled(scale_module(scale_source), np.ones(10, np.float32)) == 3).all()


def test_an_edited_header_is_a_new_build(scale_source: Path, private_cache: Path) -> None:
    x = np.ones(10, np.float32)
    assert (scaled(scale_module(scale_source), x) == 3).all()
    header = scale_source.with_name("scale.cuh")
    header.write_text(HEADER.replace("* FACTOR", "* FACTOR + 1"))
    assert (scaled(scale_module(scale_source), x) == 4).all()
    assert (scaled(scale_module(scale_source, 2.5), x) == 6).all()
    assert len(list(private_cache.glob("scale-run-*.so"))) == 3


def test_steady_sources_are_not_looked_at_until_the_end(
    scale_source: Path, private_cache: Path
) -> None:
    x = np.ones(10, np.float32)
    header = scale_source.with_name("scale.cuh")
    long_ago = time.time() - 60
    for path in scale_source.parent.iterdir():
        os.utime(path, (long_ago, long_ago))
    with steady_sources():
        assert (scaled(scale_module(scale_source), x) == 3).all()
        header.write_text(HEADER.replace("* FACTOR", "* FACTOR + 1"))
        assert (scaled(scale_module(scale_source), x) == 3).all()
    assert (scaled(scale_module(scale_source), x) == 4).all()


def test_a_cached_library_is_not_compiled_again(
    scale_source: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_module(scale_source)
    (library,) = private_cache.glob("scale-run-*.so")
    before = library.stat().st_mtime_ns

    def refuse(*_: object) -> str:
        raise AssertionError("the compiler ran")

    monkeypatch.setattr(host_build, "run_compiler", refuse)
    again = host_build.build_library(
        scale_source, defines={"THREADS": 64, "FACTOR": 1.5}, mode="run", cp_async="eager"
    )
    assert again == library and library.stat().st_mtime_ns == before


QUOTIENT = """extern "C" __global__ void quotient(int* y, int by) {
    const int above = y[1] + 1;
    y[0] = above / by;
}
"""


@pytest.mark.parametrize("mode", ["run", "shuffle"])
def test_a_processor_fault_has_its_line_from_a_build_with_the_same_instructions(
    mode: host_build.Mode, tmp_path: Path, private_cache: Path
) -> None:
    source = tmp_path / "quotient.cu"
    source.write_text(QUOTIENT)
    module, y = build(source, defines={}, mode=mode), np.ones(2, np.int32)
    launch = dict(grid=(1, 1, 1), block=(1, 1, 1))
    module.launch("quotient", **launch, args=[y, np.int32(2)])
    assert y.tolist() == [1, 1] and len(list(private_cache.glob("quotient-*.so"))) == 1
    with pytest.raises(KernelFault, match=r"quotient\.cu:3\b"):
        module.launch("quotient", **launch, args=[y, np.int32(0)])
    quick, lined = sorted(private_cache.glob("quotient-*.so"), key=lambda p: p.stat().st_mtime_ns)
    assert sections(quick.read_bytes())[".text"] == sections(lined.read_bytes())[".text"]


def test_two_processes_may_build_the_same_source(scale_source: Path, private_cache: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from dsv4.runtime.host import build\n"
        f"build(Path({str(scale_source)!r}), defines={{'THREADS': 64, 'FACTOR': 1.5}})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(cuda_root().parent)}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert [path.suffix for path in private_cache.glob("scale-*")] == [".so"]
    assert not list(private_cache.glob("build-*"))


def test_include_closure_follows_headers_of_headers() -> None:
    names = [path.name for path in include_closure(KERNELS / "reductions.cu")]
    assert names[0] == "reductions.cu" and {"reduce.cuh", "math.cuh", "types.cuh"} <= set(names)


def test_sources_are_found_in_an_installed_wheel_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "dsv4" / "cuda" / "host" / "cuda_host.h"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    monkeypatch.delenv("DSV4_CUDA_ROOT", raising=False)
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "dsv4" / "runtime" / "sources.py"))
    cuda_root.cache_clear()
    try:
        assert cuda_root() == tmp_path / "dsv4" / "cuda"
        installed.unlink()
        cuda_root.cache_clear()
        with pytest.raises(CompileError, match="was not found"):
            cuda_root()
    finally:
        cuda_root.cache_clear()


def test_a_digest_depends_on_content_and_extra(tmp_path: Path) -> None:
    file = tmp_path / "a.cu"
    file.write_text("one")
    first = digest([file], "x")
    assert digest([file], "x") == first and digest([file], "y") != first
    file.write_text("two")
    assert digest([file], "x") != first


def test_two_workers_share_the_blocks_and_keep_their_statics_apart() -> None:
    module = build(KERNELS / "reductions.cu", defines={})
    x = np.random.default_rng(3).standard_normal((200, 256)).astype(np.float32)
    results = []
    for workers in (1, 2, None):
        out = np.zeros((200, 256, 4), np.float32)
        module.launch(
            "float_reductions",
            grid=(200, 1, 1),
            block=(256, 1, 1),
            args=[x, out],
            workers=workers,
        )
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]


def other_compiler() -> str:
    """clang++ if it is here, else ziglang's, as DSV4_CXX would name it."""
    if shutil.which("clang++") is not None:
        return "clang++"
    if importlib.util.find_spec("ziglang") is not None:
        return "ziglang"
    pytest.skip("neither clang++ nor the ziglang wheel is here")


def test_another_compiler_gives_the_same_bytes_and_the_same_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(4).standard_normal((3, 96)).astype(np.float32)
    expected, found = np.zeros((3, 96, 4), np.float32), np.zeros((3, 96, 4), np.float32)
    places = {"grid": (3, 1, 1), "block": (96, 1, 1)}
    source = KERNELS / "reductions.cu"
    build(source, defines={}).launch("float_reductions", args=[x, expected], **places)
    monkeypatch.setenv("DSV4_CXX", other_compiler())
    for mode in ("run", "check"):
        module = build(source, defines={}, mode=mode)
        module.launch("float_reductions", args=[x, found], **places)
        assert found.tobytes() == expected.tobytes()
    path = BROKEN / "barrier_missing_after_write.cu"
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "// FAULT" in text)
    with pytest.raises(LaunchError, match=f"race.*(?s:.*){path.name}:{line}"):
        build(path, defines={}, mode="check").launch(
            "broken", grid=(1, 1, 1), block=(128, 1, 1), args=[x.ravel()[:128].copy(), x.ravel()]
        )
