"""Inputs for filters and draws: filters one by one and together, peaked and flat rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, constant, ids, literal, normal, uniform

OFF: dict[str, Any] = dict(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
STATS: dict[str, Any] = dict(mx=constant(3.0), th=constant(0.01), z=constant(9.0))


@cases_for("filter_stats")
def stats_cases() -> Iterator[Case]:
    """Rows around a block, each filter, their intersection, boundaries that several share."""
    yield Case("smallest", T=1, V=1, **OFF)
    yield Case("off the block", T=3, V=515, **OFF)
    yield Case("cold", T=3, V=300, **{**OFF, "temp": 0.1})
    yield Case("by count", T=3, V=515, **{**OFF, "top_k": 20})
    yield Case("more than there are", T=1, V=50, **{**OFF, "top_k": 60})
    yield Case("by mass", T=3, V=515, **{**OFF, "top_p": 0.9})
    yield Case("by the maximum", T=3, V=515, **{**OFF, "min_p": 0.125})
    yield Case("together", T=3, V=515, temp=0.8, top_k=20, top_p=0.95, min_p=0.01)
    yield Case("ties", T=1, V=60, x=literal([0.0, -1.0, -1.0, -2.0]), **{**OFF, "top_k": 20})
    yield Case("one token", T=2, V=70, **{**OFF, "top_k": 1})
    yield Case("vocabulary", T=8, V=151936, level="full", temp=0.8, top_k=20, top_p=0.95, min_p=0.0)


@cases_for("filter_gather")
def gather_cases() -> Iterator[Case]:
    """Kept, filtered and unknown tokens."""
    yield Case("smallest", T=1, V=1, temp=1.0, ids=ids("V"), **STATS)
    yield Case("more rows than a warp", T=37, V=19, temp=0.7, ids=ids("V"), **STATS)
    yield Case("unknown", T=3, V=19, temp=0.7, ids=literal([-1, 19, 0]), **STATS)
    yield Case("nothing filtered", T=5, V=23, temp=2.0, ids=ids("V"), **{**STATS, "th": 0.0})


def _draws(**more: Any) -> Iterator[Case]:
    common: dict[str, Any] = dict(seed=42, event=3, temp=1.0, x=normal(), **STATS, **more)
    yield Case("smallest", T=1, V=1, **common)
    yield Case("off the block", T=5, V=515, **common)
    yield Case("cold", T=3, V=100, **{**common, "temp": 0.25})
    yield Case("other seed", T=3, V=100, **{**common, "seed": -1_234_567_890_123})
    yield Case("counter at its end", T=3, V=100, **{**common, "event": 2**32 - 2})
    yield Case("flat", T=2, V=1030, **{**common, "x": uniform(2.9, 3.0), "th": 0.0})
    yield Case("vocabulary", T=4, V=151936, level="full", **common)


@cases_for("filter_gumbel")
def gumbel_cases() -> Iterator[Case]:
    """Rows around a block, seeds and events at their ends, a row of which nothing is kept."""
    yield from _draws()
    nothing: dict[str, Any] = dict(temp=1.0, seed=1, event=0, mx=100.0, th=0.5, z=0.0)
    yield Case("nothing kept", T=2, V=33, **nothing)


@cases_for("filter_residual_dense")
def dense_cases() -> Iterator[Case]:
    """Two rows with filters of their own; equal rows leave nothing."""
    yield from _draws(q=normal(), q_mx=constant(2.5), q_th=constant(0.02), q_z=constant(8.0))
    same: dict[str, Any] = dict(temp=1.0, seed=1, event=0, x=1.0, q=1.0, mx=1.0, th=0.0, z=33.0)
    yield Case("equal rows", T=2, V=33, q_mx=1.0, q_th=0.0, q_z=33.0, **same)


def _twice(below: str) -> Fill:
    """Ids of which neighbours name the same token."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        made = ids(below)(rng, shape, fmt, s)
        made[:, 1::2] = made[:, : made.shape[1] // 2 * 2 : 2]
        return made

    return fill


@cases_for("filter_residual_sparse")
def sparse_cases() -> Iterator[Case]:
    """A few probabilities, some of them given twice for a token."""
    for case in _draws(candidates=_twice("V"), q=uniform(0.0, 0.2)):
        axes: dict[str, Any] = {**case.axes, "K": 7 if case.name == "off the block" else 5}
        yield Case(case.name, level=case.level, **axes, **case.values)
