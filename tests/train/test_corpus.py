"""The corpus: which files belong, what is held out, and how another corpus is told apart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from dsv4.errors import Refusal
from tools.train.corpus import (
    SourceFile,
    belongs,
    check_recorded,
    copy_corpus,
    is_held_out,
    read_corpus,
    read_record,
)

HELD_OUT = ("argparse", "collections", "tempfile", "timeit")


def library(folder: Path, **changed: str | None) -> Path:
    """A library of a few modules; None removes a file. Dots of names are written as two lines."""
    files: dict[str, str | None] = {
        "abc.py": "a = 1\n",
        "json/__init__.py": "b = 2\n",
        "json/tests/test_all.py": "d = 4\n",
        "test/test_abc.py": "e = 5\n",
        "test/test_timeit.py": "never",
        "site-packages/thing.py": "never",
        "timeit.py": "c = 3\n",
    }
    files |= {name.replace("__", "."): text for name, text in changed.items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_whole_modules_are_held_out_by_their_name_alone(tmp_path: Path) -> None:
    assert [m for m in ("abc", "json", *HELD_OUT) if is_held_out(m)] == list(HELD_OUT)
    found = read_corpus(library(tmp_path))
    assert [f.name for f in found.train] == [
        "abc.py",
        "json/__init__.py",
        "json/tests/test_all.py",
        "test/test_abc.py",
    ]
    assert [f.name for f in found.held_out] == ["timeit.py"]


@pytest.mark.parametrize(
    ("name", "module", "test"),
    [
        ("argparse.py", "argparse", False),
        ("collections/abc.py", "collections", False),
        ("test.py", "test", False),
        ("test/test_argparse.py", "argparse", True),
        ("test/_test_multiprocessing.py", "multiprocessing", True),
        ("test/test__osx_support.py", "_osx_support", True),
        ("test/test_email/test_email.py", "email", True),
        ("test/support/os_helper.py", "support", True),
        ("test/test_.py", "test_", True),
        ("unittest/test/test_case.py", "unittest", True),
        ("idlelib/idle_test/test_run.py", "idlelib", True),
    ],
)
def test_a_test_belongs_to_the_module_that_it_tests(name: str, module: str, test: bool) -> None:
    file = SourceFile(name, b"")
    assert (file.module, file.is_test) == (module, test)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("os.py", True),
        ("test/support/x.py", True),
        ("unittest/test/x.py", True),
        ("unittest/mock.py", True),
        ("unittest/__main__.py", True),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
        ("config-3.12-x86_64-linux-gnu/python-config.py", False),
        ("distutils/cmd.py", False),
        ("site-packages/x.py", False),
    ],
)
def test_files_belong_by_rule(path: str, kept: bool) -> None:
    assert belongs(tuple(path.split("/"))) is kept


def test_the_running_interpreters_corpus_holds_out_a_few_modules_in_a_hundred() -> None:
    corpus = read_corpus()
    found = corpus.record()
    kept = found["held_out"]["bytes"]
    learned = sum(len(f.content) for f in corpus.train if not f.is_test)
    assert 0.02 < kept / (learned + kept) < 0.10
    assert set(HELD_OUT) <= set(found["held_out"]["modules"])
    assert found["release"].startswith("CPython 3.")


def test_an_equal_corpus_passes(tmp_path: Path) -> None:
    recorded = json.loads(json.dumps(read_corpus(library(tmp_path)).record()))
    check_recorded(read_corpus(tmp_path), recorded)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"abc__py": "a = 2\n"}, "1 changed (abc.py)"),
        ({"timeit__py": "c = 4\n"}, "1 changed (timeit.py)"),
        ({"new__py": ""}, "1 added (new.py)"),
    ],
)
def test_another_corpus_is_refused_with_what_differs(
    tmp_path: Path, changed: dict[str, str], says: str
) -> None:
    recorded = read_corpus(library(tmp_path)).record()
    with pytest.raises(Refusal, match="recorded") as refusal:
        check_recorded(read_corpus(library(tmp_path, **changed)), recorded)
    assert says in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    recorded = read_corpus(library(tmp_path)).record()
    (tmp_path / "json" / "__init__.py").unlink()
    with pytest.raises(Refusal, match=r"1 missing \(json/__init__\.py\)"):
        check_recorded(read_corpus(tmp_path), recorded)


def test_a_copy_is_the_same_corpus_of_the_same_release(tmp_path: Path) -> None:
    first = read_corpus(library(tmp_path / "library"))
    copy_corpus(dataclasses.replace(first, release="CPython 9.9.9"), tmp_path / "copy")
    again = read_corpus(tmp_path / "copy")
    assert again.release == "CPython 9.9.9"
    check_recorded(again, first.record())
    with pytest.raises(Refusal, match="something is there"):
        copy_corpus(first, tmp_path / "copy")


def test_a_folder_without_a_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="whole standard library"):
        read_corpus(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"release": "x"}'])
def test_a_file_that_records_no_corpus_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "corpus.json").write_text(text, encoding="utf-8")
    with pytest.raises(Refusal, match="corpus"):
        read_record(tmp_path / "corpus.json")
