"""A text written twice, without a drafter and with it, and what the drafter did for each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv4.engine.engine import Engine
from dsv4.engine.speculate import SpecRound
from dsv4.errors import Refusal
from lab.generation import Generated, generate, generate_spec
from lab.spec_run import first_difference
from lab.tokenizer import Reader, Tokenizer

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "v4-python"
PROMPT: Final = """\
class Stack:
    def __init__(self, items):
        self.items = items

    def __len__(self):
"""
"""A function that wants its body."""


@dataclass(frozen=True, slots=True)
class DemoRound:
    """One round. token: decided before it. accepted: drafts that stayed. dropped: verified ones
    that did not: the first wrong one and those behind it.
    """

    token: int
    accepted: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demo:
    """Both texts. first_difference: of their tokens; None where there is none."""

    plain: Generated
    drafted: Generated
    rounds: tuple[DemoRound, ...]
    first_difference: int | None


@dataclass(slots=True)
class Body:
    """The lines behind a header: ends at the first line that is indented no deeper than it."""

    reader: Reader
    margin: int = 0
    text: str = ""
    seen: int = 0

    def ended(self, tokens: Sequence[int]) -> bool:
        """Whether the newest token begins a line at the margin or before it."""
        for token in tokens[self.seen :]:
            self.text += self.reader.feed(token)
        self.seen = len(tokens)
        return self._is_behind(self.text.rpartition("\n")[2])

    @property
    def lines(self) -> str:
        """The body without the line that ended it, and without white space at its end."""
        body, _, line = self.text.rpartition("\n")
        whole = body if self._is_behind(line) or not line.strip() else self.text
        return whole.rstrip()

    def _is_behind(self, line: str) -> bool:
        """Whether a line stands behind the body."""
        begun = line.lstrip()
        return "\n" in self.text and bool(begun) and len(line) - len(begun) <= self.margin


def margin_of(prompt: str) -> int:
    """The indentation of the last header in a text, 0 without one."""
    for line in reversed(prompt.split("\n")):
        begun = line.lstrip()
        if begun.startswith(("def ", "async def ", "class ")):
            return len(line) - len(begun)
    return 0


def require_example(folder: Path) -> None:
    """Nothing, if the checkpoint is there. Errors: Refusal with what to do."""
    if (folder / "config.json").is_file():
        return
    asked = "the example checkpoint" if folder == EXAMPLE else "a checkpoint"
    raise Refusal(
        f"{asked} was to be shown\n  it is not there\n  at {folder}\n"
        "  it comes with a checkout: git restore examples; or name another folder that holds a"
        " tokenizer:\n  dsv4-lab demo DIR, make demo ARGS=DIR"
    )


def run_demo(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    count: int,
    *,
    on_text: Callable[[str], None],
    on_rounds: Callable[[Generated], None],
    on_round: Callable[[DemoRound], None],
) -> tuple[Demo, str]:
    """Both runs of one engine, and the text they wrote, up to the end of the body.

    on_text: shown the plain text as its lines are complete. on_rounds: called between the runs,
    with the plain one. on_round: shown every round. Errors: StateError without a drafter.
    """
    stop = () if tokenizer.eos is None else (tokenizer.eos,)
    header = tokenizer.stream()
    margin = margin_of("".join(map(header.feed, prompt)) + header.end())
    body, shown = Body(tokenizer.stream(), margin), 0

    def watched(tokens: Sequence[int]) -> bool:
        nonlocal shown
        ended = body.ended(tokens)
        whole = body.lines
        on_text(whole[shown:])
        shown = max(shown, len(whole))
        return ended

    plain = generate(engine, prompt, count, stop=stop, until=watched)
    on_rounds(plain)
    rounds: list[DemoRound] = []

    def played(made: SpecRound | None, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        dropped = () if made is None else made.drafts[made.accepted : max(0, made.rows - 1)]
        rounds.append(DemoRound(tokens[0], tuple(tokens[1:]), dropped))
        on_round(rounds[-1])

    again = Body(tokenizer.stream(), margin)
    drafted = generate_spec(engine, prompt, count, stop=stop, until=again.ended, on_round=played)
    where = first_difference(plain.tokens, drafted.tokens)
    return Demo(plain, drafted, tuple(rounds), where), body.lines


def spelled(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Tokens on one line: ends of lines and control characters are escaped, spaces are dots.

    Drafts of bytes are mostly indentation, and blanks would not be seen.
    """
    reader = tokenizer.stream()
    whole = "".join(reader.feed(t) for t in tokens) + reader.end()
    whole = whole.replace(" ", "\u00b7")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole)
