"""Files as texts to be scored: their tokens, and what gzip and xz make of the same bytes."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4.errors import Refusal
from lab.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """One file. content: its bytes, as far as they are scored. tokens: with what leads a text.

    unscored: bytes that no row speaks about: those of the first token, where nothing leads it.
    """

    path: Path
    content: bytes
    tokens: tuple[int, ...]
    unscored: int


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes of files under other compressors at their hardest: each file alone, and all as one."""

    gzip_bytes: int
    xz_bytes: int
    joined_gzip_bytes: int
    joined_xz_bytes: int


def read_texts(paths: Sequence[Path], tokenizer: Tokenizer, limit_bytes: int | None) -> list[Text]:
    """The files as texts, each cut to its first limit_bytes bytes.

    Errors: Refusal for an empty file, for a file that cannot be read, for bytes that are no tokens.
    """
    return [_read(path, tokenizer, limit_bytes) for path in paths]


def _read(path: Path, tokenizer: Tokenizer, limit_bytes: int | None) -> Text:
    try:
        with path.open("rb") as file:
            content = file.read(-1 if limit_bytes is None else limit_bytes)
    except OSError as error:
        raise Refusal(
            f"a text was to be scored\n  it cannot be read: {error.strerror}\n  at {path}\n"
            "  give files that are there"
        ) from error
    if not content:
        raise Refusal(
            f"a text was to be scored\n  it holds no byte\n  in {path}\n  give files with text"
        )
    tokens = tuple(tokenizer.encode(content))
    return Text(path, content, tokens, tokenizer.bytes_of_first(tokens))


def packed(texts: Sequence[Text]) -> Packed:
    """What gzip -9 and xz -9 make of the texts."""
    joined = b"".join(t.content for t in texts)
    return Packed(
        sum(gzip_size(t.content) for t in texts),
        sum(xz_size(t.content) for t in texts),
        gzip_size(joined),
        xz_size(joined),
    )


def gzip_size(content: bytes) -> int:
    """Bytes of `gzip -9n`."""
    return len(gzip.compress(content, 9, mtime=0))


def xz_size(content: bytes) -> int:
    """Bytes of `xz -9`."""
    return len(lzma.compress(content, preset=9))
