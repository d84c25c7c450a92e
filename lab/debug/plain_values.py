"""A failing case made plain: values become zero where they do not matter, and one where they do."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.spec import Arg
from lab.cases import inputs_of
from lab.debug.search import Search, case_with, is_number, sizes_of
from oracle.formats import encode


def shrink_values(search: Search) -> bool:
    """Zero whatever need not be there, then make the rest 1; whether the budget sufficed."""
    for arg in search.spec.inputs:
        if not is_number(arg):
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


def _replace_values(search: Search, arg: Arg, value: Any) -> bool:
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


def _with_values(search: Search, arg: Arg, flat: np.ndarray, value: Any) -> bool:
    content = dict(inputs_of(search.spec, search.best, search.seed))
    changed = content[arg.name].copy()
    changed.reshape(-1)[flat] = value
    content[arg.name] = changed
    sizes = sizes_of(search.spec, search.best)
    return search.fails(case_with(search.best, sizes, {**search.best.values, **content}))


def _different(search: Search, arg: Arg, value: Any) -> int:
    bits = inputs_of(search.spec, search.best, search.seed)[arg.name]
    return int((bits != value).sum())


def _code(arg: Arg, value: float) -> Any:
    """A number as the argument stores it; packed codes hold it twice."""
    if arg.fmt.name == "e2m1x2":
        code = int(encode(np.array([value]), "e2m1")[0])
        return np.uint8(code | code << 4)
    return encode(np.array([value]), arg.fmt.name)[0]
