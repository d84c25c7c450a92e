"""Where the wrong elements are, in sentences a person would say.

"all 512 mismatches have dim >= 448" names a bug that "512 mismatches" does not. A sentence is only
said when chance would hardly produce it (less than one in a thousand, were the places random).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.compare.pair import Mask

MODULI = (2, 4, 8, 16, 32, 64, 128)
_CHANCE = 1e-3
_MOST = 0.9  # the share from which "most mismatches" is said

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AxisPattern:
    """The mismatches seen along one axis.

    low, high: the half-open range they span; distinct: how many indices of the axis have any.
    modulus: for each modulus the most frequent residue and its share of the mismatches.
    last_tile: share in the last tile, when the tile's width is known.
    """

    axis: str
    size: int
    low: int
    high: int
    distinct: int
    modulus: dict[int, tuple[int, float]]
    last_tile: float | None


def axis_patterns(
    wrong: Mask, axes: tuple[str, ...], tile: Mapping[str, int]
) -> tuple[AxisPattern, ...]:
    """The pattern along every axis; empty when nothing is wrong."""
    if not wrong.any():
        return ()
    return tuple(
        _axis_pattern(name, counts, tile.get(name)) for name, counts in _counts(wrong, axes)
    )


def sentences(wrong: Mask, axes: tuple[str, ...], tile: Mapping[str, int]) -> tuple[str, ...]:
    """What the places of the wrong elements have in common, the strongest statement first.

    tile: elements per tile of the axes whose tiling is known.
    """
    n = int(wrong.sum())
    if n == 0:
        return ()
    if n == wrong.size:
        return (f"all {n} elements are wrong",)
    if n == 1:
        return ("a single element is wrong",)
    clauses, extra, covered = [], [], 1
    for name, counts in _counts(wrong, axes):
        found = _axis_pattern(name, counts, tile.get(name))
        place = _place(found, tile.get(name))
        residue = _residue(found, counts, n)
        clauses += [c for c in (place, residue) if c]
        covered *= (found.high - found.low) if place else found.size
        if not place:
            extra += _mostly(found, counts, n, tile.get(name))
    said = [f"all {n} mismatches have {' and '.join(clauses)}"] if clauses else []
    if clauses and covered == n:
        said[0] += ": every element there"
    said += [*extra, *_run(wrong, n, bool(clauses))]
    return tuple(said) or (f"{n} mismatches, no pattern by position",)


def _counts(wrong: Mask, axes: tuple[str, ...]) -> list[tuple[str, Counts]]:
    every = range(wrong.ndim)
    return [
        (name, wrong.sum(axis=tuple(a for a in every if a != axis), dtype=np.int64))
        for axis, name in enumerate(axes)
        if wrong.shape[axis] > 1
    ]


def _axis_pattern(name: str, counts: Counts, width: int | None) -> AxisPattern:
    hit = np.flatnonzero(counts)
    total, index = int(counts.sum()), np.arange(counts.size)
    modulus = {}
    for m in MODULI:
        if m < counts.size:
            residues = np.bincount(index % m, weights=counts, minlength=m)
            modulus[m] = (int(residues.argmax()), float(residues.max()) / total)
    share = None
    if width and width < counts.size:
        share = float(counts[(counts.size - 1) // width * width :].sum()) / total
    return AxisPattern(name, counts.size, int(hit[0]), int(hit[-1]) + 1, hit.size, modulus, share)


def _place(p: AxisPattern, width: int | None) -> str:
    """A clause for a single index or a short range, with the tile or block it fills."""
    if p.distinct == 1:
        end = " (the first)" if p.low == 0 else " (the last)" if p.high == p.size else ""
        return f"{p.axis}={p.low}{end}"
    # Mismatches that share an index are no independent draws of it.
    if ((p.high - p.low) / p.size) ** p.distinct > _CHANCE:
        return ""
    block = _block(p, width)
    if p.high == p.size:
        return f"{p.axis} >= {p.low}{block}"
    if p.low == 0:
        return f"{p.axis} < {p.high}{block}"
    return f"{p.axis} in [{p.low},{p.high}){block}"


def _block(p: AxisPattern, width: int | None) -> str:
    """The tile, or else the smallest aligned power-of-two block, that holds the whole range."""
    if width and width < p.size and p.low // width == (p.high - 1) // width:
        number, last = p.low // width, (p.size - 1) // width
        partial = f", a partial one of {p.size % width}" if p.size % width else ""
        return f" (the last tile{partial})" if number == last else f" (tile {number} of {last + 1})"
    block = 1 << ((p.low ^ (p.high - 1)).bit_length())
    if block > 256 or block >= p.size or 2 * (p.high - p.low) <= block:
        return ""
    if p.low // block == (p.size - 1) // block:
        return f" (the last {block}-wide block)"
    return f" (the {block}-wide block {p.low // block})"


def _residue(p: AxisPattern, counts: Counts, n: int) -> str:
    """A clause for one residue, or one half of the residues, of the largest modulus that holds."""
    hit = np.flatnonzero(counts)
    draws = min(n, hit.size) - 1
    if p.distinct < 2:
        return ""
    for m in reversed(MODULI):
        if m in p.modulus and p.modulus[m][1] == 1.0 and float(m) ** -draws < _CHANCE:
            return f"{p.axis} % {m} == {p.modulus[m][0]}"
    for m in MODULI[1:]:
        # Only where the range visits both halves; else the range has said it already.
        if p.high - p.low <= m or 0.5**draws > _CHANCE:
            continue
        upper = hit % m >= m // 2
        if upper.all() or not upper.any():
            return f"{p.axis} % {m} {'>=' if upper.all() else '<'} {m // 2}"
    return ""


def _mostly(p: AxisPattern, counts: Counts, n: int, width: int | None) -> list[str]:
    """Statements about most of the mismatches, for an axis where none holds for all."""
    said = []
    for m in reversed(MODULI):
        residue, share = p.modulus.get(m, (0, 0.0))
        if _MOST <= share < 1.0 and n * (share - 1 / m) ** 2 > 10:
            said.append(f"{share:.0%} of the mismatches have {p.axis} % {m} == {residue}")
            break
    if width and p.last_tile is not None:
        start = (p.size - 1) // width * width
        expected = (p.size - start) / p.size
        if p.last_tile >= 0.5 and n * (p.last_tile - expected) ** 2 > 10:
            place = f"the last tile of {p.axis}, from {start}"
            said.append(f"{p.last_tile:.0%} of the mismatches are in {place}")
    top = int(counts.argmax())
    share = float(counts[top]) / n
    if _MOST <= share < 1.0 and n * (share - 1 / p.size) ** 2 > 10:
        said.append(f"{share:.0%} of the mismatches have {p.axis}={top}")
    return said


def _run(wrong: Mask, n: int, placed: bool) -> list[str]:
    flat = wrong.reshape(-1)
    first = int(flat.argmax())
    last = flat.size - 1 - int(flat[::-1].argmax())
    if last - first + 1 != n or (placed and wrong.ndim == 1):
        return []
    return [f"they are one contiguous run of {n} elements from flat index {first}"]
