"""Pairs of computations that must give the same bytes.

A twin is data: two ways to compute the same outputs, and the inputs on which both are tried. Each
module here declares the twins of one group of kernels in its `TWINS`. `lab.twins.session` runs them
and counts the bytes that differ; a twin holds when there is none.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.errors import SpecError
from lab.twins.bench import Bench, Outputs

LEVELS = ("quick", "full")

Inputs = Mapping[str, Any]
Side = Callable[[Bench, Inputs], Outputs]


@dataclass(frozen=True, slots=True)
class Trial:
    """One input set: arrays as stored bits, sizes and scalars by name.

    make: called with a generator of its own, so that no trial depends on another.
    level: "quick" runs always, "full" with `--all` only.
    """

    name: str
    make: Callable[[np.random.Generator], dict[str, Any]]
    level: str = "quick"


@dataclass(frozen=True, slots=True)
class Twin:
    """Two sides that must agree in every byte on every trial.

    name: what agreement shows. left, right: what each side runs, for people.
    kernels: every kernel that takes part; the first one's outputs name the axes and formats.
    run_left, run_right: the sides; both return the same outputs by name.
    says: what is promised beside equal bytes, a sentence each.
    """

    name: str
    left: str
    right: str
    kernels: tuple[str, ...]
    trials: tuple[Trial, ...]
    run_left: Side
    run_right: Side
    says: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def twins() -> Mapping[str, Twin]:
    """Every declared twin by name, modules in alphabetical order. Errors: SpecError on doubles."""
    found: dict[str, Twin] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for twin in getattr(module, "TWINS", ()):
            if twin.name in found:
                raise SpecError(f"twin {twin.name} is declared twice, second in {module.__name__}")
            found[twin.name] = twin
    return found


def match(patterns: Sequence[str]) -> list[Twin]:
    """Twins matching any pattern: exact name, kernel, glob or prefix; all without patterns.

    Errors: SpecError for a pattern that matches nothing.
    """
    every = list(twins().values())
    if not patterns:
        return every
    chosen: set[str] = set()
    for pattern in patterns:
        hits = [t for t in every if pattern == t.name or pattern in t.kernels]
        hits = hits or [t for t in every if fnmatch.fnmatchcase(t.name, pattern)]
        hits = hits or [t for t in every if t.name.startswith(pattern)]
        if not hits:
            raise SpecError(_unknown(pattern, every))
        chosen.update(t.name for t in hits)
    return [t for t in every if t.name in chosen]


def trials_of(twin: Twin, level: str) -> list[Trial]:
    """The trials of a twin up to that level."""
    return [t for t in twin.trials if LEVELS.index(t.level) <= LEVELS.index(level)]


def _unknown(pattern: str, every: Sequence[Twin]) -> str:
    known = sorted({t.name for t in every} | {k for t in every for k in t.kernels})
    near = difflib.get_close_matches(pattern, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"{len(every)} twins are declared"
    return f"no twin matches {pattern!r}; {hint}\n  see them with: dsv4-lab twin --list"
