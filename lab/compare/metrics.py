"""Single numbers about an output: identity, bias, norms, and the rows that are worst."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.compare.pair import Mask, Pair
from oracle.formats import Floats


@dataclass(frozen=True, slots=True)
class Lean:
    """Whether errors lean to one side.

    mean: mean signed error in spacings; z: how many standard deviations the numbers of elements
    above and below are from a fair coin. Correct rounding gives about 0 and a z of a few at most.
    """

    mean: float
    z: float


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A row (all leading axes fixed): how many elements fail, and the largest use of the bound."""

    where: dict[str, int]
    failing: int
    size: int
    use: float


def identical(pair: Pair) -> int:
    """How many elements have the bytes of the rounded reference (or are both NaN)."""
    return pair.size - int(pair.differ.sum())


def zero_signs(pair: Pair) -> int:
    """How many zeros have the other sign than the reference's zero."""
    return int((pair.differ & (pair.got == 0) & (pair.rounded == 0)).sum())


def bias(pair: Pair) -> Lean:
    """The lean of got - ref: rounding down or up."""
    return _lean(pair.error / pair.step, pair.finite)


def shrink(pair: Pair) -> Lean:
    """The lean of |got| - |ref|: negative when low bits are cut off instead of rounded.

    Truncation is towards zero, so on data of both signs `bias` alone does not see it.
    """
    return _lean(np.sign(pair.ref) * pair.error / pair.step, pair.finite & (pair.ref != 0))


def _lean(signed: Floats, counted: Mask) -> Lean:
    above, below = int((signed > 0).sum()), int((signed < 0).sum())
    if above + below == 0:
        return Lean(0.0, 0.0)
    z = (above - below) / float(np.sqrt(above + below))
    return Lean(float(np.where(counted, signed, 0.0).sum() / counted.sum()), z)


def rel_l2(pair: Pair) -> float:
    """||got - ref|| / ||ref|| over elements that are finite on both sides."""
    error, ref = _norm(pair.error), _norm(np.where(pair.finite, pair.ref, 0.0))
    return error / ref if ref else (0.0 if error == 0 else float("inf"))


def cos_gap(pair: Pair) -> float:
    """1 - cos of the angle between got and ref, as half the squared distance of unit vectors.

    Subtracting a cosine from 1 would leave nothing but rounding below 1e-16.
    """
    got, ref = (np.where(pair.finite, v, 0.0) for v in (pair.got, pair.ref))
    got_norm, ref_norm = _norm(got), _norm(ref)
    if got_norm == 0 or ref_norm == 0:
        return 0.0 if got_norm == ref_norm else 1.0
    return _norm(got / got_norm - ref / ref_norm) ** 2 / 2


def _norm(x: Floats) -> float:
    """The 2-norm, scaled so that squares neither overflow nor vanish."""
    top = float(np.abs(x).max(initial=0.0))
    if top == 0 or not np.isfinite(top):
        return top
    scaled = (x / top).reshape(-1)
    return top * float(np.sqrt(scaled @ scaled))


def worst_rows(use: Floats, failing: Mask, axes: tuple[str, ...], top: int) -> tuple[WorstRow, ...]:
    """The rows with the largest use of the bound, then the most failing elements."""
    if use.size == 0 or use.ndim == 0:
        return ()
    lead, width = use.shape[:-1], use.shape[-1]
    if not lead:  # a vector has no rows; its elements are the rows
        lead, width, use, failing = use.shape, 1, use[:, None], failing[:, None]
    rows = use.reshape(-1, width).max(1)
    counts = failing.reshape(-1, width).sum(1)
    chosen = np.lexsort((-counts, -rows))[:top]
    places = np.stack(np.unravel_index(chosen, lead), 1)
    return tuple(
        WorstRow(
            dict(zip(axes, map(int, place), strict=False)), int(counts[r]), width, float(rows[r])
        )
        for r, place in zip(chosen, places, strict=True)
        if rows[r] > 0
    )
