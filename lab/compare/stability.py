"""Bytes that must not depend on circumstances: relaunches, batch size, chunking, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsv4.errors import SpecError
from lab.compare.pair import Raw


@dataclass(frozen=True, slots=True)
class Stability:
    """How many of the tries gave the same bytes as the first, and where another first differed.

    changed: elements that differ in any try. first: (try, flat index) of the first difference.
    """

    same: int
    tries: int
    changed: int
    first: tuple[int, int] | None

    @property
    def stable(self) -> bool:
        """Whether every try gave the same bytes."""
        return self.same == self.tries


def over_relaunches(outputs: Sequence[Raw]) -> Stability:
    """The stability of one output over launches on the same inputs; every byte counts, NaNs too.

    Errors: SpecError without outputs, or when their shapes or types differ.
    """
    if not outputs or any(
        o.shape != outputs[0].shape or o.dtype != outputs[0].dtype for o in outputs
    ):
        raise SpecError("stability: give at least one output, all of one shape and type")
    reference, changed, first, same = _bits(outputs[0]), None, None, 0
    for index, output in enumerate(outputs):
        other = _bits(output) != reference
        if not other.any():
            same += 1
            continue
        first = first or (index, int(other.reshape(-1).argmax()))
        changed = other if changed is None else changed | other
    return Stability(same, len(outputs), 0 if changed is None else int(changed.sum()), first)


def over_pieces(whole: Raw, pieces: Sequence[Raw], axis: int) -> Stability:
    """Whether an output computed in pieces along an axis has the bytes of the whole.

    Pieces may be single rows (batch 1 against N), chunks, or cut-off padding.
    Errors: SpecError when the pieces do not add up to the whole.
    """
    joined = np.concatenate(list(pieces), axis) if pieces else whole[:0]
    if joined.shape != whole.shape:
        raise SpecError(f"stability: pieces make {list(joined.shape)}, whole {list(whole.shape)}")
    return over_relaunches([whole, joined])


def _bits(array: Raw) -> Raw:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
