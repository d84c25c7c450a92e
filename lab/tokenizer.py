"""Text to tokens and back, by what lies beside a checkpoint: bytes, or a vocabulary file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.tokenizer import DECLARATION, read_byte_tokenizer
from dsv4.errors import Refusal

VOCABULARY = "tokenizer.json"


class Reader(Protocol):
    """Reads generated tokens as they come."""

    def feed(self, token: int) -> str:
        """The text that this token completes."""

    def end(self) -> str:
        """What was begun and never completed."""


class Tokenizer(Protocol):
    """What commands need of a tokenizer."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    def encode(self, text: str | bytes) -> list[int]:
        """The tokens of a text, what comes in front of every text included."""

    def bytes_of_first(self, tokens: Sequence[int]) -> int:
        """Bytes of the text in the first of its tokens; 0 for one that only leads the text."""

    def stream(self) -> Reader:
        """A reader of generated tokens."""


@dataclass(slots=True)
class _FileReader:
    """A character may need several tokens, so what is new is taken from the whole text."""

    vocabulary: Any
    tokens: list[int] = field(default_factory=list)
    shown: str = ""

    def feed(self, token: int) -> str:
        self.tokens.append(token)
        text: str = self.vocabulary.decode(self.tokens)
        # An incomplete character is decoded as U+FFFD and would have to be taken back.
        if text.endswith("\ufffd"):
            return ""
        return self._new(text)

    def end(self) -> str:
        return self._new(self.vocabulary.decode(self.tokens))

    def _new(self, text: str) -> str:
        piece, self.shown = text[len(self.shown) :], text
        return piece


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """The vocabulary of a `tokenizer.json`."""

    vocabulary: Any
    eos: int | None
    where: Path

    def encode(self, text: str | bytes) -> list[int]:
        """The tokens of a text. Errors: Refusal for bytes that are no UTF-8."""
        try:
            words = text if isinstance(text, str) else text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(
                f"text was to become tokens\n  its byte {error.start} begins no UTF-8 character\n"
                f"  and the vocabulary is that of {self.where}\n  convert the text to UTF-8"
            ) from None
        return [int(i) for i in self.vocabulary.encode(words).ids]

    def bytes_of_first(self, tokens: Sequence[int]) -> int:
        """Bytes of the text in the first of its tokens; special tokens have none."""
        return len(self.vocabulary.decode(list(tokens[:1])).encode("utf-8"))

    def stream(self) -> Reader:
        """A reader of generated tokens."""
        return _FileReader(self.vocabulary)


def open_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """The tokenizer beside a checkpoint: the bytes, where its declaration says so, or its file.

    Errors: Refusal when there is neither, or the extra `text` is missing for a file.
    """
    declared = read_byte_tokenizer(folder, config.vocab_size)
    if declared is not None:
        return declared
    file = folder / VOCABULARY
    if not file.is_file():
        raise Refusal(
            f"text was given\n  there is no {VOCABULARY}, and no {DECLARATION} that says bytes\n"
            f"  in {folder}\n"
            '  fetch them with the checkpoint, declare {"tokenizer_class": "bytes"}, or give --ids'
        )
    try:
        from tokenizers import Tokenizer as Vocabulary
    except ImportError:
        raise Refusal(
            f"text was given\n  the package tokenizers, which reads {file}, is not installed\n"
            '  in this environment\n  install the extra: pip install "dsv4-lab[text]", or give'
            " --ids"
        ) from None
    return FileTokenizer(Vocabulary.from_file(str(file)), config.eos_token_id, file)
