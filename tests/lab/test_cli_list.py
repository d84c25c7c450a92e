"""`dsv4-lab list`: kernels, verdicts, gaps and what was edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsv4 import registry
from lab import coverage
from lab.cli.main import main
from lab.record.digests import source_digest, spec_digest
from lab.record.store import Store


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own."""
    monkeypatch.setenv("DSV4_STORE", str(tmp_path / "lab.db"))
    return tmp_path / "lab.db"


def kernels(*arguments: str) -> list[dict[str, Any]]:
    """The kernels of the JSON document."""
    result = CliRunner().invoke(main, ["list", "--json", *arguments])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["kernels"]
    return found


def record(path: Path, kernel: str, verdict: str, digest: str | None) -> None:
    """One result of that kernel in the store."""
    with Store.open(path) as opened:
        run = opened.begin_run(["kernel-diff"], {})
        facts = {"kernel": kernel, "case": "c", "verdict": verdict, "source_digest": digest}
        opened.add_result(run, facts)


def test_every_declared_kernel_is_listed_in_order() -> None:
    assert [k["kernel"] for k in kernels()] == list(registry.kernels())


@pytest.mark.parametrize("pattern", ["cast_bf16", "cast", "cast_*", "cas"])
def test_a_pattern_is_a_name_a_family_a_glob_or_a_prefix(pattern: str) -> None:
    assert [k["kernel"] for k in kernels(pattern)] == ["cast_bf16"]


def test_a_family_can_be_asked_for() -> None:
    found = kernels("--family", "movement")
    assert {k["family"] for k in found} == {"movement"} and len(found) > 1


def test_a_kernel_never_run_is_new_and_no_store_is_made(store: Path) -> None:
    (row,) = kernels("cast")
    assert (row["verdict"], row["record"], row["stale"]) == ("NEW", None, True)
    assert not store.exists()


def test_the_last_verdict_comes_from_the_store(store: Path) -> None:
    record(store, "cast_bf16", "PASS", source_digest(registry.spec("cast_bf16")))
    (row,) = kernels("cast")
    assert (row["verdict"], row["record"], row["edited"], row["stale"]) == ("PASS", 1, False, False)


def test_an_edited_kernel_is_stale_and_marked(store: Path) -> None:
    record(store, "cast_bf16", "PASS", "digest of another source")
    record(store, "argmax", "PASS", source_digest(registry.spec("argmax")))
    stale = [k["kernel"] for k in kernels("--stale", "cast", "argmax")]
    assert stale == ["cast_bf16"]
    shown = CliRunner().invoke(main, ["list", "cast"])
    assert "PASS*" in shown.stdout and "1 edited since" in shown.stderr


def test_the_text_is_a_table_on_standard_output_and_its_count_on_standard_error() -> None:
    result = CliRunner().invoke(main, ["list", "cast"])
    header, row = result.stdout.splitlines()
    assert header.split() == ["kernel", "family", "contract", "cases", "last", "summary"]
    assert row.startswith("cast_bf16")
    assert result.stderr == "1 kernels in 1 families\n"
    assert CliRunner().invoke(main, ["list", "cast", "-q"]).stderr == ""


def test_coverage_lists_gaps_and_undeclared_symbols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cast.cu").write_text(
        'extern "C" __global__ void __launch_bounds__(256) cast_bf16(int n) {}\n'
        '// extern "C" __global__ void commented(int n) {}\n'
        'extern "C" __global__ void\nforgotten(int n) {}\n'
    )
    monkeypatch.setattr(coverage, "cuda_root", lambda: tmp_path)
    result = CliRunner().invoke(main, ["list", "cast", "--coverage"])
    assert "forgotten" in result.stdout and "commented" not in result.stdout
    document = json.loads(CliRunner().invoke(main, ["list", "--coverage", "--json"]).stdout)
    assert document["undeclared"] == ["cast.cu: forgotten"]


@pytest.mark.parametrize(
    ("sizes", "tail"),
    [({1, 7}, True), ({128, 384}, True), ({128, 256}, False), ({4096}, False), ({1}, False)],
)
def test_a_tail_is_an_odd_number_of_the_unit_that_all_sizes_share(
    sizes: set[int], tail: bool
) -> None:
    assert coverage.has_tail(sizes) is tail


def test_a_spec_digest_changes_with_the_promise_and_not_with_the_geometry() -> None:
    from dataclasses import replace

    from dsv4.spec import Geometry, Ulp

    spec = registry.spec("cast_bf16")
    assert spec_digest(replace(spec, geometry=lambda s: Geometry(1, 64))) == spec_digest(spec)
    assert spec_digest(replace(spec, contract={"y": Ulp(1.0, "looser")})) != spec_digest(spec)


def test_an_axis_that_must_be_a_power_of_two_has_no_gap() -> None:
    spec = registry.spec("hadamard")
    assert not coverage.may_have_tail(spec, "K", {2, 64, 128})
    assert coverage.may_have_tail(spec, "T", {2, 4})


def test_no_kernel_has_a_gap() -> None:
    found = {name: coverage.gaps(k.spec) for name, k in registry.kernels().items()}
    assert not {name: g for name, g in found.items() if g}
