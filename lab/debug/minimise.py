"""A failing case made small: first the smallest shape that still fails, then the plainest values.

Shapes: every axis (and integer scalar) is tried at 1, 2, 3, ... and at powers of two below its
size, then halved down between the last size that passes and the first that fails; again and again
until no axis gets smaller. Values: parts of each array become zero while the case goes on failing
(delta debugging), what is left becomes 1 where it can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import bind_shape
from dsv4.spec import Arg, KernelSpec
from lab.cases import Case, array_shape, inputs_of, scalars_of
from lab.result import FAIL, PASS, CaseResult
from lab.run import RunOptions, run_case
from oracle.formats import FORMATS, encode

_TRIED_ONE_BY_ONE: Final = 64
_FAULT = "KernelFault"


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


class _Search:
    """The state of one search: the best case so far, and how to try another."""

    def __init__(
        self,
        spec: KernelSpec,
        device: Device,
        seed: int,
        budget_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.device = device
        self.seed = seed
        self.end = time.monotonic() + budget_s
        self.runs = 0
        self.steps: list[str] = []
        self.tell = tell
        self.wanted = ""
        self.best: Case
        self.result: CaseResult

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self.end

    def run(self, case: Case) -> CaseResult:
        """One judged run of a case, without timing."""
        self.runs += 1
        options = RunOptions(seed=self.seed, time=False, relaunch=2)
        return run_case(self.spec, case, self.device, options)

    def begin(self, case: Case) -> None:
        """Run the case as it is. Errors: SpecError when it does not fail."""
        result = self.run(case)
        self.wanted = _kind(result)
        if not self.wanted:
            found = "passes" if result.verdict == PASS else f"ends in {result.error_class}"
            raise SpecError(
                f"{self.spec.name} {case.label} cannot be minimised: it {found} on"
                f" {self.device.name}\n  choose a failing case with -p or -c, or another --mode"
            )
        self.best, self.result = case, result

    def fails(self, case: Case) -> bool:
        """Whether a smaller case fails in the same way; then it is the best so far."""
        try:
            result = self.run(case)
        except (SpecError, LaunchError):
            return False
        if _kind(result) != self.wanted:
            return False
        self.best, self.result = case, result
        return True


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
    sizes = _sizes(spec, case)
    if unknown := [k for k in keep if k not in sizes]:
        raise SpecError(
            f"--keep {', '.join(unknown)}: {spec.name} has {', '.join(sizes)}\n"
            "  name an axis or an integer scalar"
        )
    search = _Search(spec, device, seed, budget_s, tell)
    search.begin(case)
    finished = _shrink_shape(search, [a for a in sizes if a not in keep])
    finished &= _shrink_values(search)
    inputs = inputs_of(spec, search.best, seed)
    nonzero = {n: (int(np.count_nonzero(v)), v.size) for n, v in inputs.items()}
    return Minimised(
        search.best, search.result, search.runs, finished, tuple(search.steps), nonzero
    )


def _kind(result: CaseResult) -> str:
    """In which way a case fails; "" when it passes or cannot be run at all."""
    if result.verdict == FAIL:
        return FAIL
    return _FAULT if result.error_class == _FAULT else ""


def _sizes(spec: KernelSpec, case: Case) -> dict[str, int]:
    """Axes and integer scalars of a case: what a shape is made of."""
    scalars = {a.name for a in spec.scalars if not a.fmt.is_float}
    return {**case.axes, **{k: int(v) for k, v in case.values.items() if k in scalars}}


def _shrink_shape(search: _Search, axes: Sequence[str]) -> bool:
    """Make every axis as small as it goes, until a round over all changes nothing."""
    changed = True
    while changed:
        changed = False
        for axis in axes:
            before = _sizes(search.spec, search.best)[axis]
            if not _shrink_axis(search, axis):
                return False
            after = _sizes(search.spec, search.best)[axis]
            if after < before:
                changed = True
                search.steps.append(f"{axis} {before} -> {after}")
                search.tell(search.steps[-1])
    return True


def _shrink_axis(search: _Search, axis: str) -> bool:
    """The smallest failing size of one axis; whether the budget reached to the end."""
    size = _sizes(search.spec, search.best)[axis]
    passed = 0
    for candidate in _candidates(size):
        if search.spent:
            return False
        if _at_size(search, axis, candidate):
            break
        passed = candidate
    # Failing need not be monotone; between the last that passed and the first that failed it is
    # taken to be, and the end is checked one by one.
    high = _sizes(search.spec, search.best)[axis]
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


def _at_size(search: _Search, axis: str, size: int) -> bool:
    """Whether the case fails with one axis smaller, on cut inputs or on fresh ones."""
    case = search.best
    sizes = {**_sizes(search.spec, case), axis: size}
    starts = {0, max(0, _failing_at(search, axis) - size + 1)}
    cuts = [_cut(search, sizes, axis, start) for start in sorted(starts)]
    for content in (*cuts, _fresh(case)):
        if content is None:
            continue
        smaller = _with(case, sizes, content)
        if _legal(search.spec, smaller) and search.fails(smaller):
            return True
    return False


def _fresh(case: Case) -> dict[str, Any] | None:
    """The case's own fills, which make inputs of any size; None where arrays were given."""
    arrays = any(isinstance(v, np.ndarray) for v in case.values.values())
    return None if arrays else dict(case.values)


def _failing_at(search: _Search, axis: str) -> int:
    """Where along an axis the first wrong element of the best case lies; 0 if that is unknown."""
    wrong = [o.first for o in search.result.outputs if o.first is not None and not o.passed]
    return next((place.where[axis] for place in wrong if axis in place.where), 0)


def _cut(search: _Search, sizes: Mapping[str, int], axis: str, start: int) -> dict[str, Any] | None:
    """The present inputs cut to a smaller shape, along one axis from `start` on.

    Ids are made anew, because they may point outside.
    """
    spec, case = search.spec, search.best
    present = inputs_of(spec, case, search.seed)
    bound = {**scalars_of(spec, case), **case.axes, **sizes}
    content: dict[str, Any] = {}
    for arg in spec.inputs:
        if not _is_number(arg) and callable(case.values.get(arg.name)):
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


def _with(case: Case, sizes: Mapping[str, int], content: Mapping[str, Any]) -> Case:
    axes = {k: sizes[k] for k in case.axes}
    scalars = {k: v for k, v in sizes.items() if k not in axes}
    values = {**content, **scalars}
    return Case("minimised", level=case.level, check=True, pad=case.pad, **axes, **values)


def _legal(spec: KernelSpec, case: Case) -> bool:
    """Whether the declaration allows the shape."""
    try:
        named = scalars_of(spec, case)
        bound = {**case.axes, **named}
        bind_shape(spec, {a.name: array_shape(a, bound) for a in spec.arrays}, named)
    except (SpecError, LaunchError, ZeroDivisionError):
        return False
    return True


def _is_number(arg: Arg) -> bool:
    return arg.fmt.name in FORMATS or arg.fmt.name == "e2m1x2"


def _shrink_values(search: _Search) -> bool:
    """Zero whatever need not be there, then make the rest 1; whether the budget sufficed."""
    for arg in search.spec.inputs:
        if not _is_number(arg):
            continue
        for what, value in (("zero", _code(arg, 0.0)), ("one", _code(arg, 1.0))):
            before = _different(search, arg, value)
            finished = _replace_values(search, arg, value)
            left = _different(search, arg, value)
            if left < before:
                search.steps.append(f"{arg.name}: {before - left} elements made {what}")
                search.tell(search.steps[-1])
            if not finished:
                return False
    return True


def _replace_values(search: _Search, arg: Arg, value: Any) -> bool:
    """Delta debugging: replace ever smaller parts of an array by one value."""
    zero = _code(arg, 0.0)
    bits = inputs_of(search.spec, search.best, search.seed)[arg.name]
    keeps_zero = value != zero
    chosen = np.flatnonzero((bits != value) & ((bits != zero) if keeps_zero else True))
    parts = 1
    while chosen.size:
        pieces = np.array_split(chosen, min(parts, chosen.size))
        shrunk = False
        for piece in pieces:
            if search.spent:
                return False
            if _with_values(search, arg, piece, value):
                chosen = np.setdiff1d(chosen, piece, assume_unique=True)
                shrunk = True
        if not shrunk and parts >= chosen.size:
            break
        parts = parts if shrunk else 2 * parts
    return True


def _with_values(search: _Search, arg: Arg, flat: np.ndarray, value: Any) -> bool:
    content = dict(inputs_of(search.spec, search.best, search.seed))
    changed = content[arg.name].copy()
    changed.reshape(-1)[flat] = value
    content[arg.name] = changed
    sizes = _sizes(search.spec, search.best)
    return search.fails(_with(search.best, sizes, {**search.best.values, **content}))


def _different(search: _Search, arg: Arg, value: Any) -> int:
    bits = inputs_of(search.spec, search.best, search.seed)[arg.name]
    return int((bits != value).sum())


def _code(arg: Arg, value: float) -> Any:
    """A number as the argument stores it; packed codes hold it twice."""
    if arg.fmt.name == "e2m1x2":
        code = int(encode(np.array([value]), "e2m1")[0])
        return np.uint8(code | code << 4)
    return encode(np.array([value]), arg.fmt.name)[0]
