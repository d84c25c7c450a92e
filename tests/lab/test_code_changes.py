"""`compile --diff`: a comment changes nothing, another instruction does, and the place is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.errors import DeviceError, SpecError
from dsv4.runtime.nvrtc import compile_cubin, nvrtc_version
from dsv4.runtime.sources import cuda_root
from lab import builds, revisions
from lab.tools import codegen, cubin
from tests.lab.planted import ROOT, lab
from tests.lab.test_bisect import git


@pytest.fixture(autouse=True)
def needs_nvrtc() -> None:
    """Every test here compiles."""
    try:
        nvrtc_version()
    except DeviceError as error:
        pytest.skip(f"needs NVRTC: {error}")


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose first commit has comments more, and an instruction more in cast.cu."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "cuda", root / "cuda")
    norm, cast = root / "cuda" / "rms_norm.cu", root / "cuda" / "cast.cu"
    norm.write_text("// one\n// two\n" + norm.read_text())
    cast.write_text(cast.read_text().replace("f32_to_bf16(x[i])", "f32_to_bf16(x[i] * 3.0f)"))
    (root / "cuda" / "swiglu.cu").unlink()
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "cuda")
    git(root, "commit", "-q", "-m", "before")
    monkeypatch.setattr(revisions, "ROOT", root)
    return root


def changes(kernel: str) -> list[codegen.CodeChange]:
    """Every build of a kernel for one architecture, beside the first commit's."""
    work = builds.plan(registry.match([kernel]), ["sm_90a"])
    return list(codegen.compare_builds(work, "main"))


def test_comments_move_no_instruction(before: Path) -> None:
    assert {c.verdict for c in changes("rms_norm")} == {"SAME"}


def test_an_instruction_more_is_a_change_of_that_kernels_text(before: Path) -> None:
    (found,) = changes("cast_bf16")
    assert found.verdict == "FAIL"
    assert ".text.cast_bf16" in found.sections
    assert found.before is not None and found.after is not None
    assert found.before.code_bytes >= found.after.code_bytes > 0


def test_a_source_that_was_not_there_is_new(before: Path) -> None:
    found = changes("swiglu")
    assert {c.verdict for c in found} == {"NEW"}
    assert "no swiglu.cu" in found[0].problem


def test_the_sources_of_this_process_are_its_own_again(before: Path) -> None:
    own = cuda_root()
    changes("cast_bf16")
    assert cuda_root() == own


def test_an_unknown_revision_is_refused(before: Path) -> None:
    with pytest.raises(SpecError, match="--diff nowhere"):
        list(codegen.compare_builds(builds.plan(registry.match(["cast"]), ["sm_90a"]), "nowhere"))


def test_the_command_has_a_document_and_exit_5_for_a_change(tmp_path: Path) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if head.returncode:
        pytest.skip("needs a git checkout")
    done = lab(tmp_path, "--json", "compile", "cast", "--arch", "sm_90a", "--diff", "HEAD")
    document = json.loads(done.stdout)
    assert document["against"] == "HEAD"
    assert done.returncode == (0 if set(document["summary"]) == {"SAME"} else 5)


def test_code_sections_leave_debug_tables_out() -> None:
    built = compile_cubin(cuda_root() / "cast.cu", defines={}, arch="sm_100a")
    binary = built.path.read_bytes()
    names = set(cubin.code(binary))
    assert ".text.cast_bf16" in names
    assert not [n for n in names if "debug" in n or n == ".symtab"]
    assert cubin.code_bytes(binary, "cast_bf16") > 0
    assert cubin.code_bytes(binary, "nothing") == 0
    assert cubin.code_digest(binary) == cubin.code_digest(binary)
