"""generate on text: the same tokens as on ids, text as it comes, ends, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4.checkpoint.config import load_config
from dsv4.errors import Refusal
from lab.cli.main import main
from lab.cli.prompts import show_piece
from lab.tokenizer import FileTokenizer, open_tokenizer
from tests.goldens import golden_folder

TINY = golden_folder("tiny-s")


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, args)))
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def generated(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    code, out, err = run(capsys, "generate", *args, "--backend", "host", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def redeclared(folder: Path, new: Path, **changes: Any) -> Path:
    """The same weights with another declaration."""
    new.mkdir()
    for file in folder.iterdir():
        (new / file.name).symlink_to(file)
    (new / "tokenizer_config.json").unlink(missing_ok=True)
    declared = {"tokenizer_class": "bytes", **changes}
    (new / "tokenizer_config.json").write_text(json.dumps(declared), encoding="utf-8")
    return new


def test_text_gives_the_tokens_of_its_ids(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, tmp_path: Path
) -> None:
    ids = generated(capsys, byte_folder, "--ids", "256,195,169,10", "-n", 10)
    text = generated(capsys, byte_folder, "--text", "é\n", "-n", 10)
    file = tmp_path / "prompt.txt"
    file.write_bytes("é\n".encode())
    from_file = generated(capsys, byte_folder, "--text-file", file, "-n", 10)
    assert ids["tokens"] == text["tokens"] == from_file["tokens"]
    assert text["prompt"] == [256, 195, 169, 10] and ids["text"] is None
    stream = open_tokenizer(byte_folder, load_config(byte_folder)).stream()
    assert text["text"] == "".join(map(stream.feed, text["tokens"])) + stream.end()


def test_drafts_write_the_same_text(capsys: pytest.CaptureFixture[str], byte_folder: Path) -> None:
    plain = generated(capsys, byte_folder, "--text", "def f(", "-n", 12)
    drafted = generated(capsys, byte_folder, "--text", "def f(", "-n", 12, "--spec")
    assert plain["text"] == drafted["text"] and drafted["rounds"] < 12
    code, out, _ = run(
        capsys, "generate", byte_folder, "--text", "def f(", "-n", 12, "--backend", "host"
    )
    assert code == 0 and out == plain["text"] + "\n"


def test_the_end_of_text_ends_it_and_so_does_a_given_token(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, tmp_path: Path
) -> None:
    free = generated(capsys, byte_folder, "--text", "def f(", "-n", 24)
    end = next(t for t in free["tokens"] if t > 258)
    ending = redeclared(byte_folder, tmp_path / "ending", bos_token_id=256, eos_token_id=end)
    made = generated(capsys, ending, "--text", "def f(", "-n", 24)
    assert made["stopped"] and made["tokens"] == free["tokens"][: free["tokens"].index(end) + 1]
    third = free["tokens"][2]
    made = generated(capsys, byte_folder, "--text", "def f(", "-n", 12, "--stop", third)
    assert made["tokens"] == free["tokens"][: free["tokens"].index(third) + 1]


def test_gates_and_kernels_take_a_folder_of_bytes(
    capsys: pytest.CaptureFixture[str], byte_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "area.py"
    file.write_text("def area(width, height):\n    return", encoding="utf-8")
    on_text = ("--model", byte_folder, "--text", file, "--backend", "host")
    code, out, _ = run(capsys, "gate", "rows", "rings", *on_text, "--tokens", 24)
    assert code == 0 and out.endswith("2 gates, 0 failed\n")
    code, _, err = run(capsys, "gate", "rows", *on_text, "--tokens", 40)
    assert code == 2 and "it has 36" in err
    code, out, _ = run(
        capsys, "kernel-diff", "rms_norm", "markov_bias", "--weights", byte_folder, "--backend",
        "host", "--no-record",
    )  # fmt: skip
    assert code == 0 and "weights:mtp.2.markov_head" in out and " 0 fail" in out


def test_a_folder_without_a_tokenizer_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "generate", TINY, "--text", "a", "--backend", "host")
    assert code == 2 and not out
    asked, found, where, advice = err.splitlines()
    assert "text was given" in asked and "tokenizer.json" in found
    assert str(TINY) in where and "--ids" in advice


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--text", "a", "--text-file", "-"), "one of them"),
        (("--text", "a", "--ids", "1"), "one of them"),
        (("--text-file", "no/such/file"), "no/such/file"),
        (("--text", "a\ud83d"), "half of a surrogate pair"),
        (("--text", "a" * 1019), "ask for -n 1 at most"),
        (("--text", "a" * 1021), "ask for a prompt of 1005 at most"),
    ],
    ids=lambda words: str(words)[:30],
)
def test_generate_refuses_texts_with_what_to_do(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], byte_folder: Path
) -> None:
    code, out, err = run(capsys, "generate", byte_folder, *words, "--backend", "host")
    assert code == 2 and says in err and not out


def test_a_made_model_has_no_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "generate", "mint:tiny", "--text", "a", "--backend", "host")
    assert code == 2 and "in mint:tiny" in err


def test_bytes_that_are_no_tokens_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = redeclared(TINY, tmp_path / "few")
    config = json.loads((few / "config.json").read_text(encoding="utf-8"))
    config |= {"vocab_size": 128, "dspark_noise_token_id": 1}
    (few / "config.json").unlink()
    (few / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = open_tokenizer(few, load_config(few))
    with pytest.raises(Refusal, match="byte 0xc3 at place 1, 128 tokens"):
        tokenizer.encode("aé")


def test_a_file_of_tokens_needs_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Refusal, match=r"dsv4-lab\[text\]"):
        open_tokenizer(tmp_path, load_config(tmp_path))


def test_a_vocabulary_of_pieces_shows_whole_characters(tmp_path: Path) -> None:
    pieces = [b"a", b"\xc3", b"\xa9", b"\xff"]
    vocabulary = SimpleNamespace(
        encode=lambda words: SimpleNamespace(ids=[9, *range(len(words))]),
        decode=lambda ids: b"".join(pieces[i] for i in ids if i < 9).decode("utf-8", "replace"),
    )
    tokenizer = FileTokenizer(vocabulary, 1, tmp_path)
    stream = tokenizer.stream()
    assert [stream.feed(t) for t in (0, 1, 2)] == ["a", "", "é"]
    assert stream.feed(3) == "" and stream.end() == "\ufffd"
    assert tokenizer.encode(b"ab") == [9, 0, 1] and tokenizer.bytes_of_first([9, 0]) == 0
    assert tokenizer.bytes_of_first([0]) == 1
    with pytest.raises(Refusal, match="its byte 1 begins no UTF-8"):
        tokenizer.encode(b"a\xff")


def test_a_terminal_gets_pictures_of_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show_piece("a\x1b[31m\x07\n\tb\x7f\x9b")
    assert capsys.readouterr().out == "a\u241b[31m\u2407\n\tb\u2421\u2421"
