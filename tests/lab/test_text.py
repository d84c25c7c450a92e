"""Tables, numbers and documents as the commands print them."""

from __future__ import annotations

import json
import math

import click
import pytest

from lab.cli import text


def test_columns_align_and_numbers_go_to_the_right() -> None:
    shown = text.table(("name", "n"), [("a", 1), ("long name", 100)])
    assert shown == "name         n\na            1\nlong name  100"


def test_colour_does_not_disturb_the_alignment() -> None:
    plain = text.table(("a", "b"), [("PASS", 1), ("x", 2)])
    colored = text.table(("a", "b"), [(text.verdict("PASS"), 1), ("x", 2)])
    assert click.unstyle(colored) == plain != colored


def test_a_column_without_any_cell_is_left_out_and_none_is_a_dash() -> None:
    assert text.table(("a", "b", "c"), [("x", "", None), ("y", "", 2)]) == "a  c\nx  -\ny  2"


def test_a_table_without_rows_is_its_header() -> None:
    assert text.table(("a", "b"), []) == "a  b"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (4.1e-6, "s", "4.1 us"),
        (3.42e12, "B/s", "3.42 TB/s"),
        (0.0, "s", "0 s"),
        (12, "B", "12 B"),
        (999.0, "B", "999 B"),
        (-2e3, "B", "-2 kB"),
        (None, "s", "-"),
        (math.inf, "s", "inf s"),
        (1e-15, "s", "0.001 ps"),
    ],
)
def test_numbers_are_scaled_for_people(value: float | None, unit: str, shown: str) -> None:
    assert text.scaled(value, unit) == shown


def test_a_document_is_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    text.emit_json("x", a=math.nan, b=[math.inf, -math.inf], c={"d": (1, "é")})
    largest = 1.7976931348623157e308
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "schema": 1,
        "command": "x",
        "a": None,
        "b": [largest, -largest],
        "c": {"d": [1, "é"]},
    }


def test_progress_draws_nothing_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with text.progress("work", 2) as bar:
        bar.update(1)
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_a_terminal_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with text.progress("work", 2) as bar:
        bar.update(2)
    captured = capsys.readouterr()
    assert "work" in captured.err and "2/2" in captured.err
    assert captured.out == ""
