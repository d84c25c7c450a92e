"""demo: both texts are one, rounds are shown with and without colour, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsv4.checkpoint.tokenizer import ByteTokenizer
from dsv4.engine import speculate as loop_module
from lab import demo as demo_module
from lab.cli import demo as command_module
from lab.cli.main import main
from lab.demo import Body, margin_of, spelled
from tests.goldens import golden_folder

BYTES = ByteTokenizer(259, 256, 257, None, (256,), Path("here"))
HEADER = "def f(x):\n"


def demo(*words: Any, color: bool = False, env: dict[str, str] | None = None) -> Result:
    arguments = ["demo", *map(str, words), "--backend", "host"]
    return CliRunner(env=env).invoke(main, arguments, color=color)


def test_both_texts_are_shown_to_be_one(byte_folder: Path) -> None:
    done = demo(byte_folder, "-n", 10, "--text", HEADER)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{byte_folder}: 3 layers, 8 experts, on host")
    assert "without drafts\ndef f(x):\n" in done.stdout and "10 tokens in" in done.stdout
    assert "tokens a round" in done.stdout and "accepted by place" in done.stdout
    assert done.stdout.splitlines()[-1] == "SAME  both texts, all 10 tokens"
    assert "\x1b" not in done.stdout


def test_its_document_holds_every_round(byte_folder: Path) -> None:
    done = demo(byte_folder, "-n", 12, "--text", HEADER, "--json")
    found = json.loads(done.stdout)
    assert found["identity"] is True and found["first_difference"] is None
    told = [t for r in found["rounds"] for t in (r["token"], *r["accepted"])]
    assert told == found["tokens"] and len(told) == 12
    assert found["tokens_per_round"] == 12 / len(found["rounds"]) > 1
    # The drafter does not know every word, so that drafts are dropped.
    assert any(r["dropped"] for r in found["rounds"]) and found["given"] == HEADER


def test_accepted_drafts_are_green_and_dropped_ones_red_unless_colour_is_off(
    byte_folder: Path,
) -> None:
    words = (byte_folder, "-n", 12, "--text", HEADER)
    colour = demo(*words, color=True)
    green, red = "\x1b[32m", "\x1b[31m"
    assert green in colour.stdout and " / " + red in colour.stdout
    for plain in (
        demo(*words, color=True, env={"NO_COLOR": "1"}),
        demo(*words, "--no-color", color=True),
    ):
        assert "\x1b" not in plain.stdout and " / " in plain.stdout


def test_another_text_with_drafts_leaves_with_1(
    byte_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "accept_prefix", lambda asked, _: len(asked) - 1)
    done = demo(byte_folder, "-n", 12, "--text", HEADER)
    assert done.exit_code == 1 and "FAIL  the texts differ from token" in done.stdout


def test_an_absent_example_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (demo_module, command_module):
        monkeypatch.setattr(module, "EXAMPLE", tmp_path / "none")
    done = demo()
    assert done.exit_code == 2 and "the example checkpoint was to be shown" in done.stderr
    assert f"at {tmp_path / 'none'}" in done.stderr and "make demo ARGS=DIR" in done.stderr
    done = demo(tmp_path / "other")
    assert done.exit_code == 2 and "error: a checkpoint was to be shown" in done.stderr


def test_demo_refuses_what_cannot_be_shown(byte_folder: Path, tmp_path: Path) -> None:
    done = demo(golden_folder("tiny-s"))
    assert done.exit_code == 2 and "tokenizer.json" in done.stderr
    done = demo(byte_folder, "--text", "a", "--text-file", "-")
    assert done.exit_code == 2 and "one of them" in done.stderr
    done = demo(byte_folder, "-n", "4000")
    assert done.exit_code == 2 and "the model was made for 1021 positions" in done.stderr
    bare = CliRunner().invoke(
        main, ["mint", str(tmp_path / "bare"), "--layout", "official", "--backend", "host"]
    )
    assert bare.exit_code == 0
    shutil.copy(byte_folder / "tokenizer_config.json", tmp_path / "bare")
    done = demo(tmp_path / "bare")
    assert done.exit_code == 2 and "no blocks lie behind the trunk" in done.stderr


def body_of(text: str, margin: int = 0) -> Body:
    """A body that has seen a text, token by token, until it ended."""
    body, seen = Body(BYTES.stream(), margin), list[int]()
    for token in text.encode():
        seen.append(token)
        if body.ended(seen):
            break
    return body


def test_a_body_ends_where_a_line_begins_at_the_margin() -> None:
    assert body_of("    a = 1\n\n    b\n\n\ndef g(): pass").lines == "    a = 1\n\n    b"
    assert body_of("    a = 1\n\n    b").lines == "    a = 1\n\n    b"
    assert body_of("return 1").lines == "return 1"
    assert body_of("\n\n    a\n# end\n").text == "\n\n    a\n#"


def test_a_body_of_a_method_ends_where_the_next_one_begins() -> None:
    text = "        if a:\n            b\n\n    def g(self): pass"
    assert body_of(text, 4).lines == "        if a:\n            b"
    assert body_of(text, 4).text.endswith("\n    d")
    assert body_of("        a\n  # less", 4).text.endswith("  #")
    assert body_of("        a\n    ", 4).lines == "        a"


def test_what_is_shown_of_a_body_only_grows() -> None:
    body, shown = Body(BYTES.stream(), 4), [""]
    text = b"        a = 1\n\n        b(a)\n    def"
    for end in range(1, len(text) + 1):
        body.ended(list(text[:end]))
        assert body.lines.startswith(shown[-1])
        shown.append(body.lines)
    assert shown[-1] == "        a = 1\n\n        b(a)"


def test_the_margin_is_that_of_the_last_header() -> None:
    assert margin_of("class A:\n    def f(self):\n        x = 1\n") == 4
    assert margin_of("    x\nasync def f():\n    y\n") == 0
    assert margin_of("    defined = 1\n") == 0


def test_tokens_are_spelled_on_one_line() -> None:
    assert spelled(BYTES, [97, 10, 9, 0xC3, 0xA9, 256, 27]) == "a\\n\\té\\x1b"
    assert spelled(BYTES, [0xC3]) == "\ufffd"
    assert spelled(BYTES, [32, 32, 120, 32]) == "\u00b7\u00b7x\u00b7"
