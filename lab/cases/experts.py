"""Inputs for halves of experts: more slots than a walk, ids and places of nothing, cancelling."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    alternating,
    bytes_between,
    ids,
    literal,
    normal,
    one_huge,
    powers_of_two,
    sprinkled,
    subnormal,
    values,
    wide,
)
from lab.cases.linear_fp4 import permuted_slots, stray_ids, stray_slots

# What quantised activations near 1, and the release's matrices, look like.
_SMALL = powers_of_two(-9, -6)
_SECOND = values(lambda rng, shape: rng.uniform(1.0, 2.0, shape) * 2.0**-12)
_SHARES = values(lambda rng, shape: rng.uniform(0.05, 1.5, shape))
_FIRST: dict[str, Any] = dict(
    ids=ids("E"), x_scales=_SMALL, weights=_SHARES, limit=7.0,
    shared_gate_scales=_SMALL, shared_up_scales=_SMALL,
)  # fmt: skip
_SECOND_HALF: dict[str, Any] = dict(ids=ids("E"), order=permuted_slots, shared_scales=_SMALL)
# Every slot another expert: as many bytes are read then as the declaration counts.
_DISTINCT: dict[str, Any] = dict(ids=ids("E", repeats=False))


def _with(case: Case, more: dict[str, Any]) -> Case:
    content: dict[str, Any] = {**case.axes, **case.values, **more}
    return Case(case.name, level=case.level, check=case.check, **content)


def _one_nan(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """FP8 codes of which one is NaN: it makes its row NaN."""
    codes = bytes_between(0, 0x7F)(rng, shape, fmt, s)
    codes[0, 1] = 0xFF
    return codes


def _first_halves() -> Iterator[Case]:
    yield Case("smallest", E=1, N=1, K=128, T=1, A=1, **_FIRST)
    for tokens in (2, 3, 5, 8):
        yield Case("tokens", E=5, N=33, K=384, T=tokens, A=3, **_FIRST, check=tokens in (3, 8))
    yield Case("a tail of rows", E=3, N=130, K=256, T=1, A=2, **_FIRST)
    yield Case("parts of two groups", E=3, N=17, K=2304, T=1, A=2, **_FIRST)
    yield Case("one part has less", E=2, N=9, K=2176, T=3, A=1, **_FIRST)
    yield Case("more slots than a walk", E=8, N=18, K=256, T=2, A=19, **_FIRST)
    yield Case("a block of 16 rows", E=2, N=1537, K=128, T=1, A=2, **_FIRST)
    yield Case("stray", E=3, N=21, K=256, T=7, A=2, **{**_FIRST, "ids": stray_ids})
    yield Case("no limit", E=8, N=70, K=640, T=2, A=6, **{**_FIRST, "limit": 0.0})
    yield Case("cancel", E=3, N=21, K=512, T=2, A=2, **_FIRST, wide_x=alternating(1.0, 1e-2),
               shared_gate_codes=0x22, shared_up_codes=0x22)  # fmt: skip
    yield Case("a code of NaN", E=3, N=21, K=256, T=2, A=2, **_FIRST, shared_up_codes=_one_nan)
    yield Case("small inputs", E=3, N=21, K=256, T=2, A=2, **_FIRST, wide_x=wide(-40, -20))
    yield Case("decode", E=8, N=256, K=4096, T=1, A=6, **_FIRST, level="full")
    distinct = {**_FIRST, **_DISTINCT}
    for tokens, experts in ((1, 16), (8, 48)):
        yield Case("experts", E=experts, N=2048, K=4096, T=tokens, A=6, **distinct, level="full")
    yield Case("half of each", E=16, N=1024, K=4096, T=1, A=6, **distinct, level="full")


@cases_for("experts_mx_gate_up")
def experts_mx_gate_up_cases() -> Iterator[Case]:
    """Every number of tokens, widths whose parts differ, clamps and none."""
    yield from _first_halves()


@cases_for("experts_nv_gate_up")
def experts_nv_gate_up_cases() -> Iterator[Case]:
    """The same, with two scale2 for every expert."""
    for case in _first_halves():
        yield _with(case, dict(gate_scale2=_SECOND, up_scale2=_SECOND))


def _second_halves() -> Iterator[Case]:
    special: Fill = sprinkled(normal(), [np.nan, np.inf, -np.inf], 1e-3)
    yield Case("smallest", E=1, N=1, K=128, T=1, A=1, **_SECOND_HALF)
    for tokens in (2, 3, 5, 8):
        yield Case("tokens", E=5, N=33, K=384, T=tokens, A=3, **_SECOND_HALF,
                   check=tokens in (3, 8))  # fmt: skip
    yield Case("parts of two groups", E=3, N=17, K=2304, T=1, A=2, **_SECOND_HALF)
    yield Case("one part has less", E=2, N=9, K=2176, T=3, A=1, **_SECOND_HALF)
    yield Case("more slots than a walk", E=8, N=18, K=256, T=2, A=19, **_SECOND_HALF)
    yield Case("a block of 32 rows", E=2, N=3075, K=128, T=1, A=2, **_SECOND_HALF)
    yield Case("stray", E=3, N=21, K=256, T=7, A=2, **{**_SECOND_HALF, "ids": stray_ids})
    yield Case("stray order", E=3, N=21, K=256, T=7, A=3, **{**_SECOND_HALF, "order": stray_slots})
    yield Case("cancel", E=4, N=70, K=512, T=2, A=6, **_SECOND_HALF,
               hidden=alternating(1.0, 1e-3), codes=0x22)  # fmt: skip
    yield Case("one large lane", E=4, N=21, K=512, T=2, A=3, **_SECOND_HALF, hidden=one_huge(1e4))
    yield Case("below the floor", E=4, N=21, K=256, T=2, A=3, **_SECOND_HALF, hidden=normal(1e-6))
    yield Case("subnormal", E=4, N=21, K=256, T=2, A=3, **_SECOND_HALF, hidden=subnormal())
    yield Case("special", E=4, N=21, K=256, T=4, A=3, **_SECOND_HALF, hidden=special)
    yield Case("scales with mantissa bits", E=4, N=150, K=384, T=2, A=3,
               **{**_SECOND_HALF, "shared_scales": literal([1.75, 0.3, 1.1])})  # fmt: skip
    distinct = {**_SECOND_HALF, **_DISTINCT}
    for tokens, experts in ((1, 16), (8, 48)):
        yield Case("experts", E=experts, N=4096, K=2048, T=tokens, A=6, **distinct, level="full")
    yield Case("half of each", E=16, N=4096, K=1024, T=1, A=6, **distinct, level="full")


@cases_for("experts_mx_down")
def experts_mx_down_cases() -> Iterator[Case]:
    """Hidden rows of every kind, orders and ids of nothing, more slots than one walk."""
    yield from _second_halves()


@cases_for("experts_nv_down")
def experts_nv_down_cases() -> Iterator[Case]:
    """The same, with another scale2 for every expert."""
    for case in _second_halves():
        yield _with(case, dict(scale2=_SECOND))
