"""Inputs for grouped-query attention."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, normal, one_huge, wide


def _up_to(least: int) -> Fill:
    """Ends of ranges: the last keys, one row more each."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        ends = int(s["N"]) - shape[0] + 1 + np.arange(shape[0])
        return np.maximum(ends, least).astype(np.int32)

    return fill


def _window(width: int) -> Fill:
    """Beginnings of windows that end as `_up_to` does."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return (_up_to(0)(rng, shape, fmt, s) - width).astype(np.int32)

    return fill


def _cases(**ranges: Any) -> Iterator[Case]:
    size: dict[str, Any] = dict(scale=0.25, last=_up_to(0), **ranges)
    yield Case("smallest", T=1, H=1, N=1, G=1, K=4, **size)
    yield Case("one tile", T=3, H=4, N=127, G=2, K=32, **size)
    yield Case("exactly a tile", T=1, H=2, N=128, G=2, K=16, **size)
    yield Case("one key more", T=2, H=2, N=129, G=1, K=20, **size)
    yield Case("three tiles", T=2, H=3, N=300, G=3, K=36, **size)
    yield Case("wide head", T=2, H=2, N=140, G=1, K=132, **size)
    yield Case("peaked", T=2, H=2, N=150, G=1, K=16, q=one_huge(20.0), **size)
    yield Case("flat", T=2, H=2, N=150, G=1, K=16, q=0.0, **size)
    yield Case("annihilating values", T=2, H=2, N=150, G=1, K=16, v=alternating(1.0), **size)
    yield Case("values of many sizes", T=2, H=2, N=70, G=1, K=16, v=wide(-30, 30), **size)
    yield Case("rows without keys", T=5, H=1, N=3, G=1, K=8, **size)
    yield Case("block", T=16, H=32, N=1024, G=8, K=128, level="full", **size)


@cases_for("sdpa_full")
def full_cases() -> Iterator[Case]:
    """Ranges around a tile, heads around a block, peaked and flat weights."""
    yield from _cases()


@cases_for("sdpa_scan", "sdpa_clip")
def window_cases() -> Iterator[Case]:
    """The same under windows that cut a tile, skip whole tiles, or are wider than everything."""
    yield from _cases(first=_window(1000))
    more: dict[str, Any] = dict(scale=0.25, last=_up_to(0), q=normal())
    yield Case("window of one", T=4, H=2, N=200, G=1, K=8, first=_window(1), **more)
    yield Case("window cuts a tile", T=4, H=2, N=200, G=1, K=8, first=_window(24), **more)
    yield Case("window skips tiles", T=4, H=2, N=700, G=1, K=8, first=_window(150), **more)
