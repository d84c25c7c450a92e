"""A failing case made small: first the smallest shape that still fails, then the plainest values.

Shapes: every axis (and integer scalar) is tried at 1, 2, 3, ... and at powers of two below its
size, then halved down between the last size that passes and the first that fails; again and again
until no axis gets smaller. Values: parts of each array become zero while the case goes on failing
(delta debugging), what is left becomes 1 where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import bind_shape
from dsv4.spec import KernelSpec
from lab.cases import Case, array_shape, inputs_of, scalars_of
from lab.debug.plain_values import shrink_values
from lab.debug.search import Search, case_with, is_number, sizes_of
from lab.result import CaseResult

_TRIED_ONE_BY_ONE: Final = 64


@dataclass(frozen=True, slots=True)
class Minimised:
    """The smallest failing case found, its result, and the way there.

    nonzero: elements that are not zero, of each array, (count, size). finished: whether nothing
    smaller was left to try when the search ended; otherwise the budget ended it.
    """

    case: Case
    result: CaseResult
    runs: int
    finished: bool
    steps: tuple[str, ...]
    nonzero: Mapping[str, tuple[int, int]]


def minimise(
    spec: KernelSpec,
    case: Case,
    device: Device,
    *,
    seed: int = 0,
    budget_s: float = 60.0,
    keep: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Minimised:
    """The smallest failing case that the budget allows.

    keep: axes and scalars that stay as they are. tell: called with each step in words.
    Errors: SpecError when the case does not fail, or an axis to keep is not there.
    """
    sizes = sizes_of(spec, case)
    if unknown := [k for k in keep if k not in sizes]:
        raise SpecError(
            f"--keep {', '.join(unknown)}: {spec.name} has {', '.join(sizes)}\n"
            "  name an axis or an integer scalar"
        )
    search = Search(spec, device, seed, budget_s, tell)
    search.begin(case)
    finished = _shrink_shape(search, [a for a in sizes if a not in keep])
    finished &= shrink_values(search)
    inputs = inputs_of(spec, search.best, seed)
    nonzero = {n: (int(np.count_nonzero(v)), v.size) for n, v in inputs.items()}
    return Minimised(
        search.best, search.result, search.runs, finished, tuple(search.steps), nonzero
    )


def _shrink_shape(search: Search, axes: Sequence[str]) -> bool:
    """Make every axis as small as it goes, until a round over all changes nothing."""
    changed = True
    while changed:
        changed = False
        for axis in axes:
            before = sizes_of(search.spec, search.best)[axis]
            if not _shrink_axis(search, axis):
                return False
            after = sizes_of(search.spec, search.best)[axis]
            if after < before:
                changed = True
                search.steps.append(f"{axis} {before} -> {after}")
                search.tell(search.steps[-1])
    return True


def _shrink_axis(search: Search, axis: str) -> bool:
    """The smallest failing size of one axis; whether the budget reached to the end."""
    size = sizes_of(search.spec, search.best)[axis]
    passed = 0
    for candidate in _candidates(size):
        if search.spent:
            return False
        if _at_size(search, axis, candidate):
            break
        passed = candidate
    # Failing need not be monotone; between the last that passed and the first that failed it is
    # taken to be, and the end is checked one by one.
    high = sizes_of(search.spec, search.best)[axis]
    while high - passed > 1:
        if search.spent:
            return False
        middle = (high + passed) // 2
        if _at_size(search, axis, middle):
            high = middle
        else:
            passed = middle
    return True


def _candidates(size: int) -> Iterator[int]:
    """Sizes to try, ascending: all small ones, powers of two, and what divides evenly."""
    small = set(range(1, min(size, _TRIED_ONE_BY_ONE + 1)))
    powers = {1 << k for k in range(size.bit_length())}
    parts = {size // d for d in range(2, 17) if size % d == 0}
    yield from sorted(n for n in small | powers | parts if 0 < n < size)


def _at_size(search: Search, axis: str, size: int) -> bool:
    """Whether the case fails with one axis smaller, on cut inputs or on fresh ones."""
    case = search.best
    sizes = {**sizes_of(search.spec, case), axis: size}
    starts = {0, max(0, _failing_at(search, axis) - size + 1)}
    cuts = [_cut(search, sizes, axis, start) for start in sorted(starts)]
    for content in (*cuts, _fresh(case)):
        if content is None:
            continue
        smaller = case_with(case, sizes, content)
        if _legal(search.spec, smaller) and search.fails(smaller):
            return True
    return False


def _fresh(case: Case) -> dict[str, Any] | None:
    """The case's own fills, which make inputs of any size; None where arrays were given."""
    arrays = any(isinstance(v, np.ndarray) for v in case.values.values())
    return None if arrays else dict(case.values)


def _failing_at(search: Search, axis: str) -> int:
    """Where along an axis the first wrong element of the best case lies; 0 if that is unknown."""
    wrong = [o.first for o in search.result.outputs if o.first is not None and not o.passed]
    return next((place.where[axis] for place in wrong if axis in place.where), 0)


def _cut(search: Search, sizes: Mapping[str, int], axis: str, start: int) -> dict[str, Any] | None:
    """The present inputs cut to a smaller shape, along one axis from `start` on.

    Ids are made anew, because they may point outside.
    """
    spec, case = search.spec, search.best
    present = inputs_of(spec, case, search.seed)
    bound = {**scalars_of(spec, case), **case.axes, **sizes}
    content: dict[str, Any] = {}
    for arg in spec.inputs:
        if not is_number(arg) and callable(case.values.get(arg.name)):
            content[arg.name] = case.values[arg.name]
            continue
        try:
            shape = array_shape(arg, bound)
        except SpecError:
            return None
        array = present[arg.name]
        begins = [start if a == axis else 0 for a in arg.axes]
        ends = [b + s for b, s in zip(begins, shape, strict=True)]
        if any(end > have for end, have in zip(ends, array.shape, strict=True)):
            return None
        window = tuple(slice(b, e) for b, e in zip(begins, ends, strict=True))
        content[arg.name] = np.ascontiguousarray(array[window])
    return {**case.values, **content}


def _legal(spec: KernelSpec, case: Case) -> bool:
    """Whether the declaration allows the shape."""
    try:
        named = scalars_of(spec, case)
        bound = {**case.axes, **named}
        bind_shape(spec, {a.name: array_shape(a, bound) for a in spec.arrays}, named)
    except (SpecError, LaunchError, ZeroDivisionError):
        return False
    return True
