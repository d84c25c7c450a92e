"""The record store keeps what finished, whatever happens next."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dsv4.errors import StoreError
from lab.record.exchange import export_jsonl, import_jsonl
from lab.record.store import Store, default_path

ROOT = Path(__file__).parents[2]
ENV = {"python": "3.11", "git": {"commit": "abc", "dirty": True}, "state": {"sm_mhz": 1980}}


def result(kernel: str = "rms_norm", case: str = "tail", **more: Any) -> dict[str, Any]:
    """One element of kernel-diff's results list."""
    output = {
        "name": "y",
        "format": "bf16",
        "contract": "ulp(1.0)",
        "pass": True,
        "n": 100,
        "identical": 98,
        "ulp_max": 1,
        "ulp_real_max": 0.503,
        "ulp_histogram": {"0": 98, "1": 2},
        "bias": -0.25,
        "rel_l2": 2.9e-5,
        "bound_use": 0.5,
        "nan_got": 0,
        "nan_ref": 0,
        "unwritten": 0,
        "first": None,
    }
    plain = {
        "kernel": kernel,
        "family": "rms_norm",
        "case": case,
        "axes": {"T": 7, "D": 4096},
        "backend": "host",
        "mode": "run",
        "arch": "host",
        "seed": 0,
        "verdict": "PASS",
        "time_s": 4.1e-6,
        "bytes": 1000,
        "bandwidth_fraction": 0.71,
        "outputs": [output],
    }
    return {**plain, **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's store lies."""
    return tmp_path / "deep" / "lab.db"


def with_results(path: Path, count: int) -> int:
    """The run id of a store with that many results."""
    with Store.open(path) as store:
        run = store.begin_run(["kernel-diff"], ENV)
        for index in range(count):
            store.add_result(run, result(case=f"case {index}"))
    return run


def test_a_result_comes_back_as_it_was_given(path: Path) -> None:
    given = result(extra={"unknown": [1, 2]}, first=None)
    with Store.open(path) as store:
        run = store.begin_run(["kernel-diff", "-p", "T=7"], ENV)
        store.add_result(run, given)
    with Store.open(path) as store:
        (row,) = store.results(run)
    assert row["json"] == given
    assert row["axes"] == {"T": 7, "D": 4096}
    assert (row["identical"], row["n"], row["bias"]) == (98, 100, -0.25)


def test_the_tables_are_those_of_the_documented_schema(path: Path) -> None:
    with_results(path, 1)
    with sqlite3.connect(path) as connection:
        tables = {r[0] for r in connection.execute("SELECT name FROM sqlite_master")}
        histogram = connection.execute("SELECT output, bucket, n FROM histogram").fetchall()
    connection.close()
    assert tables >= {"run", "env", "build", "result", "histogram", "timing", "artifact"}
    assert sorted(histogram) == [("y", "0", 98), ("y", "1", 2)]


def test_the_worst_output_decides_the_columns_of_a_result(path: Path) -> None:
    good, bad = dict(result()["outputs"][0]), dict(result()["outputs"][0])
    bad.update(name="s", ulp_real_max=9.0, bias=-3.0, first={"index": 41}, contract="bit_exact")
    with Store.open(path) as store:
        store.add_result(store.begin_run([], ENV), result(outputs=[good, bad], verdict="FAIL"))
        (row,) = store.results()
    assert (row["ulp_real_max"], row["bias"], row["first_index"]) == (9.0, -3.0, 41)
    assert row["contract"] == "ulp(1.0); bit_exact"


def test_an_infinite_bound_use_is_kept_as_infinite(path: Path) -> None:
    broken = {**result()["outputs"][0], "bound_use": "inf", "rel_l2": None}
    with Store.open(path) as store:
        store.add_result(store.begin_run([], ENV), result(outputs=[broken], verdict="FAIL"))
        (row,) = store.results()
    assert (row["bound_use"], row["rel_l2"]) == (float("inf"), None)


def test_equal_environments_are_stored_once_and_state_lies_with_the_run(path: Path) -> None:
    with Store.open(path) as store:
        first = store.begin_run([], ENV)
        later = {**ENV, "state": {"sm_mhz": 1200}, "git": {"commit": "def", "dirty": False}}
        second = store.begin_run([], later)
        third = store.begin_run([], {**ENV, "python": "3.12"})
        runs = {r["id"]: store.run(r["id"]) for r in store.runs()}
    assert runs[first]["env_id"] == runs[second]["env_id"] != runs[third]["env_id"]
    assert [runs[i]["state"]["sm_mhz"] for i in (first, second)] == [1980, 1200]
    assert [runs[i]["commit"] for i in (first, second)] == ["abc", "def"]


def test_samples_become_statistics_and_stay_readable(path: Path) -> None:
    samples = struct.pack("<5f", 5, 1, 3, 2, 4)
    with Store.open(path) as store:
        kept = store.add_result(store.begin_run([], ENV), result(time_s=None), samples)
        assert store.samples(kept) == samples
    with sqlite3.connect(path) as connection:
        timing = connection.execute("SELECT n, min, q1, median, q3, mean FROM timing").fetchone()
    connection.close()
    assert timing == (5, 1.0, 2.0, 3.0, 4.0, 3.0)


def test_a_build_is_stored_once_for_all_its_results(path: Path) -> None:
    build = {"source_digest": "s", "options": {"BLOCK": 64}, "arch": "sm_90a", "regs": 40}
    with Store.open(path) as store:
        run = store.begin_run([], ENV)
        for case in ("a", "b"):
            store.add_result(run, result(case=case, build=build))
        assert len({r["build"] for r in store.results()}) == 1


def test_the_latest_verdict_is_the_worst_of_the_latest_run(path: Path) -> None:
    with Store.open(path) as store:
        old, new = store.begin_run([], ENV), store.begin_run([], ENV)
        store.add_result(old, result("rope", verdict="ERROR"))
        store.add_result(new, result("rope", verdict="PASS"))
        store.add_result(new, result("hadamard", "a", verdict="PASS"))
        store.add_result(new, result("hadamard", "b", verdict="FAIL"))
        assert store.latest_verdicts() == {"rope": "PASS", "hadamard": "FAIL"}


def test_an_interrupted_run_keeps_its_finished_results(path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from tests.lab.test_store import ENV, result\n"
        "from lab.record.store import Store\n"
        "store = Store.open(sys.argv[1])\n"
        "run = store.begin_run(['kernel-diff'], ENV)\n"
        "store.add_result(run, result(case='first'))\n"
        "with store.transaction('keep a result') as c:\n"
        "    c.execute(\"UPDATE result SET verdict = 'half'\")\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        (run,) = store.runs()
        (row,) = store.results()
    assert (row["case"], row["verdict"]) == ("first", "PASS")
    assert run["finished"] is None


def test_a_keyboard_interrupt_inside_a_transaction_rolls_it_back(path: Path) -> None:
    run = with_results(path, 1)
    with Store.open(path) as store:
        with pytest.raises(KeyboardInterrupt):
            with store.transaction("keep a result") as connection:
                connection.execute("DELETE FROM result")
                raise KeyboardInterrupt
        assert len(store.results(run)) == 1
        store.add_result(run, result(case="after"))
        assert len(store.results(run)) == 2


def test_a_full_disk_is_named_and_loses_no_earlier_record(path: Path) -> None:
    run = with_results(path, 3)
    with Store.open(path) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full") as caught:
            store.add_result(run, result(case="big", note="x" * 200_000))
        assert "--store" in str(caught.value)
        assert len(store.results(run)) == 3
    with Store.open(path) as store:
        assert [r["case"] for r in store.results(run)] == ["case 0", "case 1", "case 2"]
        store.add_result(run, result(case="small"))


def test_a_really_full_file_system_is_named_and_loses_no_earlier_record(tmp_path: Path) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a tiny file system here")
    try:
        run = with_results(mount / "lab.db", 2)
        with Store.open(mount / "lab.db") as store:
            with pytest.raises(StoreError, match="disk is full"):
                for index in range(100):
                    store.add_result(run, result(case=f"more {index}", note="x" * 20_000))
            kept = len(store.results(run))
        with Store.open_existing(mount / "lab.db") as store:
            assert len(store.results(run)) == kept >= 2
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_locked_store_is_named_after_the_timeout(path: Path) -> None:
    run = with_results(path, 1)
    other = sqlite3.connect(path, isolation_level=None)
    with Store.open(path, timeout_s=0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process holds the store"):
            store.add_result(run, result(case="late"))
        other.execute("ROLLBACK")
        store.add_result(run, result(case="late"))
        assert len(store.results(run)) == 2
    other.close()


def test_garbage_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a store, but somebody's thesis\n" * 100)
    before = path.read_bytes()
    for opened in (Store.open, Store.open_existing):
        with pytest.raises(StoreError, match="damaged or is no record store"):
            opened(path)
    assert path.read_bytes() == before


def test_a_truncated_store_is_refused_and_left_alone(path: Path) -> None:
    with_results(path, 50)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for opened in (Store.open, Store.open_existing):
        with pytest.raises(StoreError, match=r"damaged.*\n.*mv lab.db lab.db.damaged"):
            opened(path)
    assert path.stat().st_size == len(whole) // 2


def test_damage_in_the_middle_is_refused(path: Path) -> None:
    with_results(path, 200)
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096 * 20)
    with pytest.raises(StoreError, match="damaged"):
        Store.open(path)


def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="other tables"):
        Store.open(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    with_results(path, 1)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE schema_version SET version = 2")
    connection.commit()
    connection.close()
    for opened in (Store.open, Store.open_existing):
        with pytest.raises(StoreError, match=r"schema version 2, this dsv4-lab knows 1\n.*upgrade"):
            opened(path)


def test_a_directory_in_the_place_of_the_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        Store.open(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written.*\n.*--no-record"):
        Store.open(tmp_path / "file" / "lab.db")


# Permissions do not bind root, so the child becomes somebody else once everything is imported.
_AS_NOBODY = """
import os, sys
from lab.record.store import Store
from dsv4.errors import StoreError
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
reader = Store.open_existing(sys.argv[1])
print(len(reader.results()))
reader.close()
try:
    Store.open(sys.argv[1])
except StoreError as error:
    print(error)
"""


def test_a_read_only_directory_can_be_read_and_is_refused_for_writing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lab.db"
        with_results(path, 2)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", _AS_NOBODY, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        Path(folder).chmod(0o755)
    assert done.stdout.startswith("2\n"), done.stderr
    assert "cannot be written" in done.stdout
    assert "--store" in done.stdout


def test_two_writers_share_one_store(path: Path) -> None:
    with Store.open(path) as one, Store.open(path) as two:
        first, second = one.begin_run([], ENV), two.begin_run([], ENV)
        for index in range(5):
            one.add_result(first, result(case=f"a{index}"))
            two.add_result(second, result(case=f"b{index}"))
        assert len(one.results()) == 10


def test_history_of_a_kernel_can_be_limited_to_the_newest(path: Path) -> None:
    with_results(path, 5)
    with Store.open_existing(path) as store:
        assert [r["case"] for r in store.results(kernel="rms_norm", limit=2)] == [
            "case 3",
            "case 4",
        ]
        assert store.results(kernel="rope") == []


def test_an_unknown_run_is_an_error_that_names_the_known(path: Path) -> None:
    with_results(path, 1)
    with Store.open_existing(path) as store:
        with pytest.raises(StoreError, match="no record 9 .* holds 1 to 1"):
            store.run(9)


def test_pruning_keeps_the_newest_and_frees_what_only_old_runs_used(path: Path) -> None:
    with Store.open(path) as store:
        for python in ("3.11", "3.12", "3.13"):
            run = store.begin_run([], {"python": python})
            store.add_result(run, result())
        assert store.prune(keep=1) == 2
        assert [r["id"] for r in store.runs()] == [run]
        assert len(store.results()) == 1
        counts = store._connection.execute(
            "SELECT (SELECT count(*) FROM env), (SELECT count(*) FROM histogram)"
        ).fetchone()
        assert tuple(counts) == (1, 2)
        assert store.prune(before="2000-01-01") == 0
        assert store.prune(before="2999-01-01") == 1


def test_export_and_import_round_trip_and_importing_twice_adds_nothing(tmp_path: Path) -> None:
    samples = struct.pack("<2f", 1, 2)
    with Store.open(tmp_path / "a.db") as store:
        run = store.begin_run(["kernel-diff", "x"], ENV)
        store.add_result(run, result(), samples)
        store.end_run(run, 1)
        lines = list(export_jsonl(store))
    assert all(json.loads(line)["schema"] == 1 for line in lines)
    assert all(list(json.loads(line)) == sorted(json.loads(line)) for line in lines)
    with Store.open(tmp_path / "b.db") as store:
        assert import_jsonl(store, lines) == (1, 1)
        assert import_jsonl(store, lines) == (0, 0)
        assert list(export_jsonl(store)) == lines
        assert store.samples(store.results()[0]["id"]) == samples


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: it is not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema": 2}', "schema 2"),
        ('{"schema": 1, "record": "song"}', "'song'"),
        ('{"schema": 1, "record": "result", "run": "u"}', "lacks result"),
        (
            '{"schema":1,"record":"result","run":"u","result":{"kernel":1,"case":1,"verdict":1}}',
            "did not come before it",
        ),
    ],
)
def test_a_bad_line_imports_nothing(tmp_path: Path, line: str, message: str) -> None:
    with Store.open(tmp_path / "a.db") as store:
        store.add_result(store.begin_run([], ENV), result())
        lines = [*export_jsonl(store), line]
    with Store.open(tmp_path / "b.db") as store:
        with pytest.raises(StoreError, match=message):
            import_jsonl(store, lines)
        assert store.runs() == []


def test_the_default_place_can_be_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_STORE", os.fspath(Path("elsewhere") / "x.db"))
    assert default_path() == Path("elsewhere") / "x.db"
    monkeypatch.delenv("DSV4_STORE")
    assert default_path() == Path(".lab") / "lab.db"


def test_reading_where_nothing_was_recorded_makes_no_file(path: Path) -> None:
    assert Store.open_existing(path) is None
    assert not path.parent.exists()
