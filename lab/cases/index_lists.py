"""Inputs for index lists: every position around the window's and the ring's ends, every tail."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill

WINDOW = 128


def whole_numbers(*numbers: int) -> Fill:
    """These integers, repeated or cut to the shape."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return np.resize(np.asarray(numbers), shape).astype(fmt.storage)

    return fill


def ascending(first: int, step: int = 1) -> Fill:
    """first, first + step, ..."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return (first + step * np.arange(shape[0])).astype(fmt.storage)

    return fill


def _visible(first: int, ratio: int) -> Fill:
    """Complete blocks at positions first, first + 1, ..."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return ((first + np.arange(shape[0]) + 1) // ratio).astype(fmt.storage)

    return fill


def _both(**more: Any) -> Iterator[Case]:
    """Cases of both kernels; `more`: what the second one takes on top."""

    def case(name: str, first: int, ratio: int, **content: Any) -> Case:
        lists = {"positions": ascending(first), "blocks": _visible(first, ratio)}
        return Case(name, **{**lists, "ring": 16, "window": 16, "base": 16, **more, **content})

    yield case("one", 0, 4, T=1, S=1, window=1, ring=1, base=1)
    yield case("from the start", 0, 4, T=45, S=27)
    yield case("known", 38, 4, T=3, S=26)
    yield case("coarse", 38, 8, T=3, S=21, pad={"ids": 5})
    yield case("around the window", 10, 4, T=13, S=20)
    yield case("around twice the window", 28, 4, T=9, S=24)
    yield case("longer ring", 30, 4, T=20, S=26, ring=22, base=22)
    yield case("prefill", 0, 4, T=41, S=26, ring=41, base=41)
    yield case("no tail", 20, 4, T=5, S=16)
    yield case("tail left open", 20, 4, T=5, S=40, blocks=-1)
    yield case("no blocks", 20, 4, T=5, S=40, blocks=0)
    yield case("more blocks than places", 4000, 4, T=5, S=40)
    yield case("no position", 0, 4, T=3, S=40, positions=whole_numbers(-1, 5, -(2**31)))
    model: dict[str, Any] = {"window": WINDOW, "ring": WINDOW, "base": WINDOW}
    for at in (0, 126, 127, 128, 255, 256, 2047, 65535, 1048575):
        yield case(f"position {at}", at, 4, T=1, S=640, **model)
    yield case("verify", 2044, 4, T=6, S=640, **model)
    yield case("coarse verify", 1048570, 128, T=6, S=128 + 8193, **model)
    yield case("long prefill", 0, 4, T=2048, S=640, window=128, ring=2048, base=2048, level="full")


@cases_for("index_lists_window")
def index_lists_window_cases() -> Iterator[Case]:
    """Rings, rows of a prefill, a drafter's block."""
    yield from _both()
    yield Case(
        "draft block",
        T=3,
        S=19,
        positions=whole_numbers(5),
        blocks=3,
        window=16,
        ring=16,
        base=16,
    )


@cases_for("index_lists_redirect")
def index_lists_redirect_cases() -> Iterator[Case]:
    """Rounds that begin at, before and after each query."""
    yield from _both(first=35, transient=500)
    for ahead in (-3, 0, 1, 7, 15, 16, 40):
        yield Case(
            f"round from {ahead} before",
            T=4,
            S=20,
            positions=40,
            blocks=whole_numbers(10, -1, 0, 3),
            first=40 - ahead,
            window=16,
            ring=16,
            base=16,
            transient=26,
        )
