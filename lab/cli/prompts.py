"""The prompt of commands that generate: token ids, text, or a file of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from dsv4.checkpoint.config import ModelConfig, load_config
from dsv4.checkpoint.mint import MintPlan
from dsv4.errors import Refusal
from lab.cli.settings import current
from lab.minted import model_of
from lab.tokenizer import Tokenizer, open_tokenizer

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--ids", multiple=True, metavar="LIST",
                 help="Token ids of the prompt, with commas between; again for a stream more."),
    click.option("--text", "words", metavar="TEXT",
                 help="The prompt as text, for a checkpoint with a tokenizer."),
    click.option("--text-file", type=click.File("rb"), metavar="FILE",
                 help="The prompt from a file; - is standard input."),
)  # fmt: skip


def prompt_options(command: Command) -> Command:
    """The command with --ids, --text and --text-file."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_prompts(
    folder: Path, ids: Sequence[str], words: str | None, file: IO[bytes] | None
) -> tuple[list[list[int]], Tokenizer | None]:
    """The tokens of the prompts that were given, and the tokenizer if it was text.

    Errors: UsageError for none, or for more than one kind; Refusal for a folder without a
    tokenizer, or text that is none.
    """
    if bool(ids) + (words is not None) + (file is not None) != 1:
        raise click.UsageError("give the prompt with --ids, --text or --text-file, one of them")
    if ids:
        return [list(whole_numbers(one)) for one in ids], None
    tokenizer = open_tokenizer(folder, config_of(folder))
    return [tokenizer.encode(file.read() if file is not None else words or "")], tokenizer


def config_of(folder: Path) -> ModelConfig:
    """The configuration of a folder or of a model to be made; no census. Errors: Refusal."""
    model = model_of(folder)
    return model.config if isinstance(model, MintPlan) else load_config(model)


def room_for(folder: Path, prompt: int, count: int, asked: int | None) -> int:
    """How many positions a prompt and its continuation need; the asked number where one was.

    Errors: Refusal for more positions than the model was made for.
    """
    if asked is not None:
        return asked
    usable = config_of(folder).usable_positions
    if prompt + count > usable:
        fits = f"-n {usable - prompt}" if usable > prompt else f"a prompt of {usable - count}"
        raise Refusal(
            f"{count} tokens after a prompt of {prompt} were asked for\n"
            f"  the model was made for {usable} positions, and the prompt is not cut\n"
            f"  in {folder}\n  ask for {fits} at most"
        )
    return prompt + count


def whole_numbers(words: str) -> Sequence[int]:
    """The ids of a list. Errors: UsageError for what is no number."""
    parts = [p for p in (part.strip() for part in words.split(",")) if p]
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise click.UsageError(f"{words!r} is no list of token ids such as 1,2,3")
    return [int(p) for p in parts]


def show_piece(piece: str) -> None:
    """Write a piece of generated text at once; nothing with --json.

    On a terminal, control characters other than ends of lines and tabs are shown as pictures: an
    untrained model writes any byte. What the terminal cannot encode becomes a question mark.
    """
    if current().json or not piece:
        return
    if sys.stdout.isatty():
        piece = "".join(_picture(c) for c in piece)
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(piece.encode(encoding, "replace").decode(encoding), nl=False)
    sys.stdout.flush()


def _picture(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or not (code < 32 or 127 <= code < 160):
        return character
    return chr(0x2400 + code) if code < 32 else "\u2421"
