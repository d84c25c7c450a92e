"""Inputs for the rows of a step: positions around the ends of windows, rings and blocks."""

from collections.abc import Iterator

from lab.cases import Case, cases_for
from lab.cases.index_lists import whole_numbers

_WINDOW = (136, 1, 0, 136, 0)
_FINE = (136, 16, 4, 136, 1)
_COARSE = (136, 136, 128, 136, 0)


@cases_for("step_rows")
def step_rows_cases() -> Iterator[Case]:
    """One ratio and several, open and closed tails, lists off a multiple of a block's threads."""
    yield Case("one", G=1, T=1, S=1, start=whole_numbers(0), rules=whole_numbers(1, 1, 0, 1, 0),
               window=1)  # fmt: skip
    model = whole_numbers(*_WINDOW, *_FINE, *_COARSE)
    for at in (0, 3, 126, 127, 135, 1048568):
        yield Case(f"from {at}", G=3, T=8, S=640, start=whole_numbers(at), rules=model, window=128)
    yield Case("tail", G=2, T=3, S=131, start=whole_numbers(510), window=128,
               rules=whole_numbers(*_FINE, *_COARSE))  # fmt: skip
    yield Case("closed fine", G=1, T=5, S=20, start=whole_numbers(33), window=8,
               rules=whole_numbers(13, 13, 4, 13, 0))  # fmt: skip
    yield Case("rules below their least", G=2, T=3, S=9, start=whole_numbers(-5), window=4,
               rules=whole_numbers(0, -3, -4, 7, 0))  # fmt: skip
