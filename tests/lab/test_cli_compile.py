"""`dsv4-lab compile`: builds, what they use, and what fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsv4 import registry
from dsv4.errors import CompileError, DeviceError
from dsv4.runtime.nvrtc import ARCHITECTURES, Cubin, Resources, nvrtc_version
from lab import builds
from lab.cli.main import main


class FakeCompiler:
    """Stands for NVRTC: hands out a cubin that says what it uses, or fails for one target."""

    def __init__(self) -> None:
        self.spill, self.more, self.broken_arch = 0, "", ""
        self.symbol = "cast_bf16"
        self.asked: list[tuple[str, str, dict[str, int]]] = []

    def __call__(self, source: Path, *, defines: Mapping[str, int], arch: str) -> Cubin:
        """A cubin with these warnings in its log."""
        self.asked.append((source.stem, arch, dict(defines)))
        if arch == self.broken_arch:
            raise CompileError(f"{source.name} does not compile for {arch}\n  line 3: error")
        return Cubin(Path("x.cubin"), "digest", arch, self.more, False)

    def resources(self, _: Cubin) -> dict[str, Resources]:
        """What every cubin of this compiler holds."""
        return {self.symbol: Resources(40, 512, self.spill, self.spill)}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """The compile layer replaced by the fake."""
    fake = FakeCompiler()
    monkeypatch.setattr(builds, "compile_cubin", fake)
    monkeypatch.setattr(Cubin, "resources", lambda cubin: fake.resources(cubin))
    monkeypatch.setattr("lab.cli.compile_all.nvrtc_version", lambda: "12.9")
    return fake


def compile_(*arguments: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(main, ["compile", *arguments])


def test_the_four_architectures_are_built_by_default(compiler: FakeCompiler) -> None:
    result = compile_("cast")
    assert result.exit_code == 0, result.output
    assert sorted(a for _, a, _ in compiler.asked) == sorted(ARCHITECTURES)
    assert result.stdout.count("40/512/0") == 4


def test_the_document_holds_every_build(compiler: FakeCompiler) -> None:
    result = compile_("cast", "--json", "--arch", "sm_90a,sm_120a")
    document = json.loads(result.stdout)
    assert document["summary"] == {"kernels": 1, "builds": 2, "failed": 0}
    assert [b["arch"] for b in document["builds"]] == ["sm_90a", "sm_120a"]
    assert document["builds"][0]["registers"] == 40
    assert document["nvrtc"] == "12.9"


def test_a_spill_fails_with_3_and_says_how_to_see_it_again(compiler: FakeCompiler) -> None:
    compiler.spill = 16
    result = compile_("cast", "--arch", "sm_90a")
    assert result.exit_code == 3
    assert "16 bytes of registers spilled, none declared" in result.stdout
    assert "dsv4-lab compile cast_bf16 --arch sm_90a" in result.stdout


def test_a_declared_spill_passes(compiler: FakeCompiler) -> None:
    compiler.spill = 16
    spec = replace(registry.spec("cast_bf16"), spills=16)
    assert builds.build(spec, {}, "sm_90a").problem == ""
    assert "16 declared" not in builds.build(spec, {}, "sm_90a").problem
    compiler.spill = 20
    assert "20 bytes of registers spilled, 16 declared" in builds.build(spec, {}, "sm_90a").problem


def test_a_source_that_does_not_compile_fails_and_the_rest_is_built(compiler: FakeCompiler) -> None:
    compiler.broken_arch = "sm_90a"
    result = compile_("cast")
    assert result.exit_code == 3
    assert "cast.cu does not compile for sm_90a" in result.stdout
    assert result.stdout.count("40/512/0") == 3


def test_a_symbol_that_the_source_lacks_fails(compiler: FakeCompiler) -> None:
    compiler.symbol = "another"
    result = compile_("cast", "--arch", "sm_80")
    assert result.exit_code == 3
    assert "cast.cu defines no kernel cast_bf16" in result.stdout


def test_warnings_fail_only_when_asked(compiler: FakeCompiler) -> None:
    compiler.more = "cast.cu(9): warning: variable is never used"
    assert compile_("cast", "--arch", "sm_80").exit_code == 0
    assert compile_("cast", "--arch", "sm_80", "--fail-on", "warnings").exit_code == 3


def test_a_kernel_for_newer_cards_is_skipped_on_older_ones(compiler: FakeCompiler) -> None:
    spec = replace(registry.spec("cast_bf16"), min_arch=90)
    assert builds.build(spec, {}, "sm_80").skipped == "needs sm_90"
    assert builds.build(spec, {}, "sm_90a").skipped == ""


def test_every_set_of_constants_that_a_case_uses_is_built_once() -> None:
    for spec in registry.match([]):
        sets = builds.constant_sets(spec)
        assert sets and all(sets.count(s) == 1 for s in sets)
    assert len(builds.constant_sets(registry.spec("hadamard"))) > 1


def test_nothing_named_is_a_usage_error() -> None:
    result = compile_()
    assert result.exit_code == 2
    assert "--all" in result.stderr


def test_without_nvrtc_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise DeviceError("compiling needs NVRTC\n  install it")

    monkeypatch.setattr("lab.cli.compile_all.nvrtc_version", missing)
    result = compile_("--all")
    assert result.exit_code == 8
    assert "install it" in result.stderr


def test_a_real_build_of_the_smallest_kernel_uses_registers_and_spills_none() -> None:
    try:
        nvrtc_version()
    except DeviceError as error:
        pytest.skip(str(error).splitlines()[0])
    document: dict[str, Any] = json.loads(compile_("cast", "--json", "--arch", "sm_90a").stdout)
    (build,) = document["builds"]
    assert build["registers"] > 0 and build["spill_bytes"] == 0 and build["problem"] == ""
