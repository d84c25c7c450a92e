"""`dsv4-lab records`: list, show, export, import, prune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.cli.main import main
from lab.record.store import Store

RESULT = {
    "kernel": "cast_bf16",
    "case": "tail",
    "axes": {"N": 257},
    "backend": "host",
    "mode": "run",
    "verdict": "PASS",
    "time_s": 2e-6,
    "outputs": [
        {"name": "y", "contract": "bit_exact", "n": 257, "identical": 257, "bound_use": 0.0}
    ],
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a finished and an interrupted run."""
    path = tmp_path / "lab.db"
    monkeypatch.setenv("DSV4_STORE", str(path))
    with Store.open(path) as opened:
        first = opened.begin_run(["dsv4-lab", "kernel-diff", "cast"], {"python": "3.11"})
        opened.add_result(first, RESULT)
        opened.end_run(first, 0)
        second = opened.begin_run(["dsv4-lab", "kernel-diff"], {"python": "3.11"})
        opened.add_result(second, {**RESULT, "verdict": "FAIL"})
    return path


def records(*arguments: str, **more: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(main, ["records", *arguments], **more)


def test_list_shows_counts_and_which_run_was_interrupted(store: Path) -> None:
    _, first, second = records("list").stdout.splitlines()
    assert first.split()[0] == "1" and first.split()[-3:] == ["0", "kernel-diff", "cast"]
    assert "interrupted" in second
    runs = json.loads(records("list", "--json").stdout)["runs"]
    assert [(r["pass"], r["fail"], r["exit_code"]) for r in runs] == [(1, 0, 0), (0, 1, None)]


def test_list_can_be_limited_to_the_newest(store: Path) -> None:
    runs = json.loads(records("list", "--last", "1", "--json").stdout)["runs"]
    assert [r["id"] for r in runs] == [2]


def test_list_without_any_record_says_how_to_make_some(tmp_path: Path) -> None:
    result = records("list", "--store", str(tmp_path / "none.db"))
    assert result.exit_code == 0
    assert "kernel-diff makes some" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_show_prints_the_results_of_a_run_and_its_environment(store: Path) -> None:
    shown = records("show", "1").stdout
    assert "record 1" in shown and "cast_bf16  tail  N=257  host run  PASS     257/257" in shown
    document = json.loads(records("show", "1", "--json").stdout)
    assert document["results"] == [RESULT]
    assert document["run"]["env"] == {"python": "3.11"}
    assert json.loads(records("show", "1", "--kernel", "x", "--json").stdout)["results"] == []


def test_show_of_an_unknown_run_names_the_known(store: Path) -> None:
    result = records("show", "7")
    assert result.exit_code == 2
    assert "no record 7" in result.stderr and "1 to 2" in result.stderr


def test_export_and_import_move_runs_between_stores(store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "out.jsonl", str(tmp_path / "other.db")
    assert records("export", "1", "-o", str(file)).exit_code == 0
    assert records("import", str(file), "--store", other).stdout.startswith("1 runs with 1 results")
    again = json.loads(records("import", str(file), "--store", other, "--json").stdout)
    assert (again["runs"], again["results"]) == (0, 0)
    assert records("export", "--store", other).stdout == file.read_text()


def test_import_reads_standard_input(store: Path, tmp_path: Path) -> None:
    lines = records("export").stdout
    other = str(tmp_path / "other.db")
    result = records("import", "-", "--store", other, input=lines)
    assert result.stdout.startswith("2 runs with 2 results")


def test_a_file_that_is_no_export_is_refused_without_a_trace(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "photo.jsonl"
    file.write_bytes(b"\xff\xd8\xff\xe0 not text\n")
    result = records("import", str(file))
    assert result.exit_code == 2
    assert "cannot import line 1" in result.stderr and "Traceback" not in result.stderr
    assert len(json.loads(records("list", "--json").stdout)["runs"]) == 2


def test_prune_deletes_what_was_asked_and_asks_what(store: Path) -> None:
    assert records("prune").exit_code == 2
    assert records("prune", "--before", "yesterday").exit_code == 2
    assert records("prune", "--before", "2000-01-01").stdout.startswith("0 runs")
    assert json.loads(records("prune", "--keep", "1", "--json").stdout)["deleted"] == 1
    assert [r["id"] for r in json.loads(records("list", "--json").stdout)["runs"]] == [2]


@pytest.mark.parametrize("verb", [["show", "1"], ["export"], ["prune", "--keep", "1"]])
def test_a_missing_store_is_an_error_where_something_was_asked_of_it(
    tmp_path: Path, verb: list[str]
) -> None:
    result = records(*verb, "--store", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert "there are no records" in result.stderr
    assert list(tmp_path.iterdir()) == []
