"""Inputs for the read-only stream: every way in which spans and vectors can end."""

from collections.abc import Iterator

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for


def _words(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Any 32 bits."""
    return rng.integers(0, 2**32, shape, np.uint32).view(np.int32)


def _one_bit(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Another single bit in every word, so that a word that is left out or read twice shows."""
    return (np.uint32(1) << (np.arange(shape[0]) % 32).astype(np.uint32)).view(np.int32)


@cases_for("roof_read")
def roof_read_cases() -> Iterator[Case]:
    """Spans of one word and of many rounds, short and empty ones, words after the last vector."""
    yield Case("smallest", N=1, B=1, x=_words)
    yield Case("one vector", N=4, B=1, x=_words)
    yield Case("more blocks than vectors", N=11, B=7, x=_one_bit)
    yield Case("tail", N=4099, B=3, x=_words)
    yield Case("single bits", N=8192 + 3, B=2, x=_one_bit)
    yield Case("all ones", N=1021, B=5, x=-1)
    yield Case("extreme", N=37, B=2, x=-(2**31))
    for threads in (512, 256):
        for loads in (8, 4):
            # One vector more than a round of a block's loads.
            words = 4 * (threads * loads + 1)
            yield Case(
                f"round of {threads} x {loads}", N=words, B=1, x=_words, threads=threads,
                loads=loads, check=threads == 256,
            )  # fmt: skip
    yield Case("stream", N=1 << 26, B=528, x=_words, level="full")
