"""The rules that hold the tree together, read from the sources themselves.

Files over their size budget are listed with `pytest -rP -k budget`; a budget starts a review, and
only three of them fail a test.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from dsv4 import registry
from dsv4.axes import is_name
from dsv4.spec import GLOSSARY, KernelSpec
from lab.cases import cases
from lab.coverage import (
    axis_sizes,
    has_tail,
    may_have_tail,
    symbols_in,
    undeclared_symbols,
)
from lab.page import five_files, missing_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dsv4", "oracle", "lab")
SPECS = [k.spec for k in registry.kernels().values()]
FAMILIES = registry.families()
# Modules of lab/cases that serve all families.
SHARED_CASES = {"__init__", "fills", "select"}
# Kernel lists, formats and pure data: importing them must stay instant everywhere.
INSTANT = (
    "dsv4/axes.py", "dsv4/card.py", "dsv4/errors.py", "dsv4/registry.py", "dsv4/spec.py",
    "dsv4/kernels",
)  # fmt: skip
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|misc|helpers?|manager|handler|base)($|_)")
FORBIDDEN_CLASSES = re.compile(r"(Manager|Handler|Base|Helper|Utils?)$")
# Spelled in two parts, so that this file does not name what it forbids.
MACHINE_PATHS = re.compile(r"(?<![\w.~<>])/(?:ho" r"me|ro" r"ot|wo" r"rk|Us" r"ers|fa" r"rm)/\w")
TEXT_SUFFIXES = {
    ".cu", ".cuh", ".cpp", ".h", ".py", ".md", ".toml", ".sql", ".txt", ".json", ".jsonl", "",
}  # fmt: skip
BUDGETS = (
    ("cuda/attention.cu", 500),
    ("cuda/experts.cu", 500),
    ("oracle/", 120),
    ("dsv4/kernels/", 120),
    ("lab/cases/", 100),
    ("lab/cli/", 150),
    ("tests/test_", 150),
    ("", 300),
)


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders or among these files."""
    paths = [ROOT / folder for folder in folders]
    return [f for p in paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]


def imports(path: Path, *, module_level_only: bool = False) -> set[str]:
    """The dotted names that a file imports, wherever or at module level outside TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if module_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def tops(names: set[str]) -> set[str]:
    """The first parts of dotted names."""
    return {name.partition(".")[0] for name in names}


def relative(path: Path) -> str:
    """The path from the root."""
    return path.relative_to(ROOT).as_posix()


def own_files() -> list[Path]:
    """Every file of the project that is text, but not what tools made."""
    folders = (*PACKAGES, "cuda", "tests", "docs", ".ci")
    paths = [p for folder in folders for p in sorted((ROOT / folder).rglob("*"))]
    paths += sorted(ROOT.iterdir())
    return [
        p
        for p in paths
        if p.is_file() and p.suffix in TEXT_SUFFIXES and "__pycache__" not in p.parts
    ]


@pytest.mark.parametrize("path", python_files("oracle"), ids=relative)
def test_an_oracle_imports_numpy_and_oracles_only(path: Path) -> None:
    assert tops(imports(path)) <= {"numpy", "oracle", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", python_files("dsv4"), ids=relative)
def test_the_engine_imports_neither_oracle_nor_workbench(path: Path) -> None:
    assert not tops(imports(path)) & {"oracle", "lab", "click", "pytest"}


@pytest.mark.parametrize("path", python_files(*PACKAGES), ids=relative)
def test_nothing_imports_the_tests(path: Path) -> None:
    assert "tests" not in tops(imports(path))


@pytest.mark.parametrize("path", python_files(*PACKAGES), ids=relative)
def test_nothing_imports_the_tools_or_what_they_need(path: Path) -> None:
    # Rivals are called as they come; what else needs torch stands outside the packages.
    rival = path.is_relative_to(ROOT / "lab" / "rivals")
    assert not tops(imports(path)) & ({"tools"} if rival else {"tools", "torch"})


@pytest.mark.parametrize("path", python_files("dsv4/runtime"), ids=relative)
def test_the_runtime_knows_specs_and_no_models(path: Path) -> None:
    own = {n for n in imports(path) if n.startswith("dsv4.")}
    allowed = ("dsv4.runtime", "dsv4.spec", "dsv4.axes", "dsv4.errors", "dsv4.__version__")
    assert all(name.startswith(allowed) for name in own), own


@pytest.mark.parametrize("path", python_files("dsv4/kernels"), ids=relative)
def test_a_declaration_knows_no_runtime_and_no_model(path: Path) -> None:
    layers = ("runtime", "engine", "checkpoint", "drafters", "targets", "speculation")
    assert not {n for n in imports(path) if n.startswith(tuple(f"dsv4.{part}" for part in layers))}


@pytest.mark.parametrize("path", python_files(*INSTANT), ids=relative)
def test_listing_kernels_loads_neither_cupy_nor_numpy(path: Path) -> None:
    assert not tops(imports(path, module_level_only=True)) & {"cupy", "numpy"}


@pytest.mark.parametrize("path", python_files("dsv4", "lab"), ids=relative)
def test_cupy_is_loaded_at_module_level_in_the_runtime_only(path: Path) -> None:
    if relative(path).startswith("dsv4/runtime/"):
        return
    assert "cupy" not in tops(imports(path, module_level_only=True))


def test_the_source_folder_holds_no_python() -> None:
    # CuPy imports NVIDIA's namespace package `cuda`; an __init__.py here would shadow it.
    assert not list((ROOT / "cuda").rglob("*.py"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_five_files(family: str) -> None:
    assert missing_files(family) == []


def test_no_file_of_a_family_lacks_the_others() -> None:
    stems = {
        "cuda": {p.stem for p in (ROOT / "cuda").glob("*.cu")},
        "dsv4/kernels": {p.stem for p in (ROOT / "dsv4/kernels").glob("*.py")} - {"__init__"},
        "lab/cases": {p.stem for p in (ROOT / "lab/cases").glob("*.py")} - SHARED_CASES,
    }
    orphans = {f"{folder}/{stem}" for folder in stems for stem in stems[folder] - set(FAMILIES)}
    assert orphans == set()


def test_every_symbol_has_a_declaration() -> None:
    assert undeclared_symbols() == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_declaration_has_a_symbol(spec: KernelSpec) -> None:
    source = ROOT / five_files(spec.family)["how does it work?"]
    assert spec.symbol in symbols_in(source)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_a_declaration_is_found_at_the_line_that_errors_name(spec: KernelSpec) -> None:
    file, _, line = spec.declared_at.partition(":")
    text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert text.startswith(f"{spec.name} = ")


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_kernel_has_a_case_off_a_multiple(spec: KernelSpec) -> None:
    sizes = axis_sizes(spec)
    possible = [a for a, found in sizes.items() if has_tail(found) or may_have_tail(spec, a, found)]
    assert not possible or any(has_tail(sizes[a]) for a in possible), sizes


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_axes_come_from_the_glossary(spec: KernelSpec) -> None:
    declared = {axis for arg in spec.arrays for axis in arg.axes if is_name(axis)}
    used = {axis for case in cases(spec.name) for axis in case.axes}
    assert declared | used <= set(GLOSSARY)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_contract_gives_a_reason(spec: KernelSpec) -> None:
    assert all(len(c.because.split()) >= 3 for c in spec.contract.values())


@pytest.mark.parametrize(
    "path", [p for p in own_files() if p.suffix in (".cu", ".cuh")], ids=relative
)
def test_sources_include_common_headers_only(path: Path) -> None:
    included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.MULTILINE)
    broken = "tests/" in relative(path)
    assert broken or all(name.startswith("common/") for name in included), included


@pytest.mark.parametrize("path", python_files(*PACKAGES, "tests"), ids=relative)
def test_names_say_what_things_are(path: Path) -> None:
    assert not FORBIDDEN_NAMES.search(path.stem), path.stem
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    assert not [name for name in classes if FORBIDDEN_CLASSES.search(name)]


@pytest.mark.parametrize("path", python_files("tests"), ids=relative)
def test_test_names_read_as_sentences(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    short = [n for n in names if n.startswith("test_") and n.count("_") < 3]
    assert short == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    found = [
        f"{relative(path)}: {match[0]}"
        for path in own_files()
        for match in [MACHINE_PATHS.search(path.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]
    assert found == []


def over_budget() -> list[tuple[str, int, int]]:
    """(file, lines, budget) of every source over its budget, the worst first."""
    found = []
    for path in own_files():
        if path.suffix not in (".cu", ".cuh", ".cpp", ".h", ".py"):
            continue
        name = relative(path)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        budget = next(limit for prefix, limit in BUDGETS if name.startswith(prefix))
        if lines > budget:
            found.append((name, lines, budget))
    return sorted(found, key=lambda row: row[2] - row[1])


def test_no_file_is_three_times_over_its_budget() -> None:
    found = over_budget()
    print("\n".join(f"{lines:5} of {budget:3}  {name}" for name, lines, budget in found))
    assert [name for name, lines, budget in found if lines > 3 * budget] == []
