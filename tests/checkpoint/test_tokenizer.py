"""Bytes as tokens: text there and back, what a folder may declare, and what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4.checkpoint.tokenizer import DECLARATION, ByteTokenizer, read_byte_tokenizer
from dsv4.errors import Refusal

DECLARED = {
    "tokenizer_class": "bytes", "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258,
}  # fmt: skip


def declared(folder: Path, vocab_size: int = 384, **changes: Any) -> ByteTokenizer:
    """The tokenizer of a folder with this declaration."""
    (folder / DECLARATION).write_text(json.dumps({**DECLARED, **changes}), encoding="utf-8")
    found = read_byte_tokenizer(folder, vocab_size)
    assert found is not None
    return found


def test_text_is_its_bytes_behind_the_begin_token(tmp_path: Path) -> None:
    made = declared(tmp_path)
    assert made.encode("aé") == [256, 0x61, 0xC3, 0xA9]
    assert made.encode(b"\xff\x00") == [256, 255, 0]
    assert (made.bos, made.eos, made.pad) == (256, 257, 258)
    assert declared(tmp_path, add_bos_token=False).encode("a") == [97]
    assert declared(tmp_path, bos_token_id=None).encode("") == []


def test_bytes_of_a_command_line_come_back_as_they_were_typed(tmp_path: Path) -> None:
    typed = b"a\xff\xc3".decode("utf-8", "surrogateescape")
    assert declared(tmp_path).encode(typed) == [256, 0x61, 0xFF, 0xC3]


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="rule text-bytes(.|\n)*at place 1, half of a surrogate"):
        declared(tmp_path).encode("a\ud83d")


def test_a_byte_beyond_a_short_vocabulary_is_refused(tmp_path: Path) -> None:
    made = ByteTokenizer(128, None, None, None, (), tmp_path)
    assert made.encode("abc") == [97, 98, 99]
    with pytest.raises(Refusal, match="byte 0xc3 at place 2, 128 tokens"):
        made.encode("abé")


@pytest.mark.parametrize(
    "changes",
    [
        {"bos_token_id": "256"},
        {"bos_token_id": True},
        {"eos_token_id": 97},
        {"eos_token_id": 384},
        {"eos_token_id": 256},
        {"pad_token_id": -1},
        {"pad_token_id": 258.0},
    ],
    ids=str,
)
def test_special_tokens_that_cannot_be_are_refused(changes: Any, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="rule special-tokens") as refused:
        declared(tmp_path, **changes)
    assert next(iter(changes)) in str(refused.value) and DECLARATION in str(refused.value)


@pytest.mark.parametrize("content", ["[]", "{", '"bytes"', "\x00"], ids=repr)
def test_a_declaration_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / DECLARATION).write_text(content, encoding="utf-8")
    with pytest.raises(Refusal, match="rule tokenizer-file"):
        read_byte_tokenizer(tmp_path, 384)


def test_a_folder_that_does_not_say_bytes_has_no_byte_tokenizer(tmp_path: Path) -> None:
    assert read_byte_tokenizer(tmp_path, 384) is None
    (tmp_path / DECLARATION).write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert read_byte_tokenizer(tmp_path, 384) is None


def test_a_character_is_shown_when_its_last_byte_has_come(tmp_path: Path) -> None:
    stream = declared(tmp_path).stream()
    shown = [stream.feed(b) for b in "a€b".encode()]
    assert shown == ["a", "", "", "€", "b"] and stream.end() == ""


def test_what_is_no_utf8_is_shown_as_replacement_characters(tmp_path: Path) -> None:
    stream = declared(tmp_path).stream()
    assert [stream.feed(t) for t in (0xFF, 0xE2, 97)] == ["\ufffd", "", "\ufffda"]
    assert [stream.feed(t) for t in (0xE2, 0x82)] == ["", ""] and stream.end() == "\ufffd"


def test_special_tokens_show_nothing_and_unknown_ones_a_replacement(tmp_path: Path) -> None:
    stream = declared(tmp_path).stream()
    assert [stream.feed(t) for t in (256, 97, 257, 300)] == ["", "a", "", "\ufffd"]
    assert [stream.feed(t) for t in (0xC3, 257, 0xA9)] == ["", "\ufffd", "\ufffd"]


@given(st.binary(max_size=40))
def test_streamed_text_is_the_decoded_text(content: bytes) -> None:
    stream = ByteTokenizer(259, None, None, None, (), Path()).stream()
    assert "".join(map(stream.feed, content)) + stream.end() == content.decode("utf-8", "replace")
