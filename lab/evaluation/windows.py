"""Which rows of which windows score a text, so that every token is scored once."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4.engine.opening import DEFAULT_POSITIONS
from dsv4.errors import Refusal


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens start..end-1 go through the model; its rows from `fresh` on score what follows them.

    Row i speaks about token i + 1.
    """

    start: int
    end: int
    fresh: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """How windows lie on a text. context: tokens of a window. stride: how far the next one lies.

    The last window ends with the text. So a token is scored with all tokens before it where they
    fit into the context, and with at least context - stride + 1 of them elsewhere.
    """

    context: int
    stride: int

    @property
    def rule(self) -> str:
        """The rule in words, with its numbers."""
        return (
            f"every byte is scored once: with all bytes before it while {self.context} tokens hold"
            f" them, then with the last {self.context - self.stride + 1} to {self.context} tokens,"
            f" in windows that lie {self.stride} tokens apart"
        )

    def windows(self, count: int) -> list[Window]:
        """The windows of a text of so many tokens; none for a single one."""
        found: list[Window] = []
        done, inputs = 0, count - 1
        while done < inputs:
            end = min(inputs, done + self.stride if found else self.context)
            found.append(Window(max(0, end - self.context), end, done))
            done = end
        return found


def overlap_of(usable: int, context: int | None, stride: int | None, where: str) -> Overlap:
    """The overlap that was asked for; else all positions (8192 at most), and half of them apart.

    usable: positions that the model was made for. Errors: Refusal for what does not fit.
    """
    chosen = min(usable, DEFAULT_POSITIONS) if context is None else context
    if not 2 <= chosen <= usable:
        raise Refusal(
            f"windows of {chosen} tokens were asked for\n"
            f"  the model was made for 2..{usable} positions\n  in {where}\n"
            "  give a --context among these"
        )
    apart = max(1, chosen // 2) if stride is None else stride
    if not 1 <= apart <= chosen:
        raise Refusal(
            f"windows that lie {apart} tokens apart were asked for\n"
            f"  a window has {chosen}, so tokens between them would never be scored\n"
            f"  in {where}\n  give a --stride of 1 to {chosen}"
        )
    return Overlap(chosen, apart)
