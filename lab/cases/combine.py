"""Inputs for the expert sum: orders of slots, sums whose order shows, entries that are no slot."""

from collections.abc import Iterator

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import alternating, extreme, normal, sprinkled, subnormal, values, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0])


def _slots(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """A permutation of the slots for every token."""
    return rng.permuted(np.tile(np.arange(shape[1]), (shape[0], 1)), axis=1).astype(np.int32)


def _descending(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.tile(np.arange(shape[1])[::-1], (shape[0], 1))


def _stray(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Permutations of which about a third hold one entry that is no slot: masked, huge, one off."""
    order = _slots(rng, shape, fmt, s)
    rows = np.flatnonzero(rng.random(shape[0]) < 0.35)
    bad = rng.choice([-1, shape[1], -(2**31), 2**31 - 1], rows.size)
    order[rows, rng.integers(0, shape[1], rows.size)] = bad
    return order


@cases_for("combine", "combine_shared")
def combine_cases() -> Iterator[Case]:
    """Decode, verify and prompt rows; widths around the block and the vector."""
    zeros = values(lambda rng, shape: rng.choice([0.0, -0.0], shape))
    yield Case("one", T=1, A=1, D=1, order=_slots)
    yield Case("tail", T=7, A=5, D=1027, order=_slots)
    yield Case("tail of vectors", T=3, A=3, D=1036, order=_slots)
    yield Case("descending", T=2, A=6, D=513, order=values(_descending))
    yield Case("repeated slots", T=2, A=6, D=64, order=values(lambda rng, s: np.full(s, 3)))
    yield Case("stray", T=40, A=6, D=260, order=_stray)
    yield Case("cancel", T=3, A=6, D=515, order=_slots, contributions=alternating(1.0, noise=1e-7))
    yield Case("binades", T=9, A=6, D=516, order=_slots, contributions=wide(-149, 124))
    yield Case("subnormal", T=3, A=6, D=515, order=_slots, contributions=subnormal())
    yield Case("extreme", T=3, A=6, D=515, order=_slots, contributions=extreme(0.4))
    yield Case("special", T=5, A=6, D=515, order=_slots, contributions=_SPECIAL)
    yield Case("signs of zero", T=5, A=2, D=64, order=_slots, contributions=zeros)
    yield Case("many slots", T=2, A=32, D=260, order=_slots)
    yield Case("many rows", T=65536 + 3, A=2, D=8, order=_slots, check=False)
    yield Case("decode", T=1, A=6, D=4096, order=_slots)
    yield Case("verify", T=6, A=6, D=4096, order=_slots)
    yield Case("prefill", T=512, A=6, D=4096, order=_slots, level="full")
