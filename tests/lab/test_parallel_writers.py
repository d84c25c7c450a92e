"""Many processes write one store at once, and nothing is lost."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from lab.record.store import Store

RESULTS = 100


def write(path: Path, number: int) -> None:
    """One writer: a run of a hundred results."""
    with Store.open(path) as store:
        run = store.begin_run(["writer", str(number)], {"device": "here"})
        for case in range(RESULTS):
            store.add_result(run, {"kernel": "k", "case": str(case), "verdict": "PASS"})
        store.end_run(run, 0)


@pytest.mark.parametrize("writers", [12, pytest.param(200, marks=pytest.mark.stress)])
def test_every_result_of_every_writer_is_kept(tmp_path: Path, writers: int) -> None:
    path = tmp_path / "lab.db"
    context = multiprocessing.get_context("spawn" if writers < 50 else "fork")
    processes = [context.Process(target=write, args=(path, n)) for n in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * writers
    with Store.open(path) as store:
        runs = store.runs()
        assert len(store.results()) == writers * RESULTS
    assert sorted(int(r["argv"][1]) for r in runs) == list(range(writers))
    assert all(r["results"] == RESULTS and r["finished"] for r in runs)
