"""Text as bytes: the tokenizer that needs no vocabulary file, and what a checkpoint says of it.

Token n below 256 is byte n. Special tokens follow from 256 on and have no spelling in text. A
folder declares this in `tokenizer_config.json`:

    {"tokenizer_class": "bytes", "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}

bos and pad may be left out. `"add_bos_token": false` keeps bos out of prompts.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsv4.checkpoint.config import read_json_object
from dsv4.checkpoint.rules import refuse

DECLARATION: Final = "tokenizer_config.json"
CLASS: Final = "bytes"
BYTES: Final = 256
_UNKNOWN: Final = "\ufffd"
_SPECIALS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A vocabulary whose first tokens are the bytes. where: the file that says so.

    first: what comes in front of every text; empty without bos.
    """

    vocab_size: int
    bos: int | None
    eos: int | None
    pad: int | None
    first: tuple[int, ...]
    where: Path

    def encode(self, text: str | bytes) -> list[int]:
        """`first`, then a token for each byte of the text in UTF-8.

        Bytes of a command line that are no UTF-8 come back as they were typed.
        Errors: Refusal for a byte beyond a vocabulary of fewer than 256 tokens, or for half of a
        surrogate pair, which is no character.
        """
        content = text if isinstance(text, bytes) else _utf8(text)
        if self.vocab_size < BYTES:
            outside = next((i for i, b in enumerate(content) if b >= self.vocab_size), None)
            if outside is not None:
                raise refuse(
                    "text-bytes",
                    f"byte 0x{content[outside]:02x} at place {outside}, {self.vocab_size} tokens",
                    self.where,
                    "leave such characters out, or give token ids",
                )
        return [*self.first, *content]

    def bytes_of_first(self, tokens: Sequence[int]) -> int:
        """Bytes of the text in the first of its tokens; special tokens have none."""
        return int(bool(tokens) and tokens[0] < BYTES)

    def stream(self) -> ByteStream:
        """A reader of generated tokens."""
        specials = (self.bos, self.eos, self.pad)
        return ByteStream(frozenset(t for t in specials if t is not None))


@dataclass(slots=True)
class ByteStream:
    """Tokens as they come, read as text. silent: special tokens, which show nothing.

    A character is shown when its last byte has come; bytes that are no UTF-8, and tokens that are
    neither bytes nor special, become U+FFFD.
    """

    silent: frozenset[int] = frozenset()
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def feed(self, token: int) -> str:
        """The text that this token completes; often empty, never wrong afterwards."""
        if token < BYTES:
            return self._decoder.decode(bytes([token]))
        return self.end() + ("" if token in self.silent else _UNKNOWN)

    def end(self) -> str:
        """What was begun and never completed, as U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def read_byte_tokenizer(folder: Path, vocab_size: int) -> ByteTokenizer | None:
    """The byte tokenizer of a checkpoint folder; None where it declares none.

    Errors: Refusal for a declaration that is no JSON object, or whose ids cannot be.
    """
    file = folder / DECLARATION
    if not file.is_file():
        return None
    content = read_json_object(file, "tokenizer-file")
    if content.get("tokenizer_class") != CLASS:
        return None
    ids: dict[str, int | None] = {}
    for key in _SPECIALS:
        value = content.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None or (whole and BYTES <= value < vocab_size and value not in ids.values()):
            ids[key] = value
            continue
        raise refuse(
            "special-tokens",
            f"{key} {value!r}, with {vocab_size} tokens in all and {list(ids.values())} before it",
            file,
            "correct it, or make the checkpoint with a larger vocabulary",
        )
    bos = ids["bos_token_id"]
    leads = bos is not None and content.get("add_bos_token", True)
    return ByteTokenizer(
        vocab_size,
        bos,
        ids["eos_token_id"],
        ids["pad_token_id"],
        (bos,) if leads and bos is not None else (),
        file,
    )


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise refuse(
            "text-bytes",
            f"{text[error.start]!r} at place {error.start}, half of a surrogate pair",
            "the given text",
            "leave it out, or give token ids",
        ) from None
