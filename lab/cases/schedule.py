"""Inputs for schedules: positions around the ends of blocks and rings, in every class of layer."""

from collections.abc import Iterator
from typing import Any

from lab.cases import Case, cases_for
from lab.cases.index_lists import whole_numbers


@cases_for("schedule")
def schedule_cases() -> Iterator[Case]:
    """Window-only, fine and coarse layers, one row to a whole prompt."""
    fine: dict[str, Any] = {"ring": 136, "raw": 16, "ratio": 4, "base": 136}
    for at in (0, 3, 4, 135, 136, 1048575):
        yield Case(f"fine at {at}", T=1, start=whole_numbers(at), **fine)
    yield Case("verify", T=8, start=whole_numbers(131), **fine)
    yield Case("window", T=5, start=whole_numbers(7), ring=8, raw=1, ratio=0, base=8)
    yield Case("coarse", T=130, start=whole_numbers(100), ring=640, raw=640, ratio=128, base=640)
    yield Case("prompt", T=517, start=whole_numbers(0), ring=640, raw=520, ratio=4, base=640)


@cases_for("schedule_advance")
def schedule_advance_cases() -> Iterator[Case]:
    """One token, a round, and none."""
    for count in (1, 8, 0):
        yield Case(f"by {count}", N=1, start=whole_numbers(126), count=count)
