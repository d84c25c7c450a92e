"""What others offer for the same work, to be checked by our oracles and timed beside our kernels.

A rival gets its best layout and its own formats, made before it is timed; so the oracle is asked
about the numbers that the rival really takes. torch and Triton are loaded when a rival is asked
for, never before.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.axes import Shape
from dsv4.errors import Refusal
from lab.oracles import Reference

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rival's call on arrays of its own. output: what it left, as values or integers.

    size_bytes: what it must move in its own formats. held_bytes: what its arrays take of memory.
    """

    run: Callable[[], None]
    output: Callable[[], np.ndarray]
    size_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to call a rival, of which the fastest is kept. make: a call on fresh arrays."""

    words: str
    make: Callable[[], Prepared]


@dataclass(frozen=True, slots=True)
class Rival:
    """An implementation of the same work.

    kernels: ours that it stands beside. output: our output that it computes. needs: packages.
    note: layout and formats, for people. sees: our inputs as it takes them, still in our formats.
    candidates: ways to call it on what it sees; called with torch and a device name.
    wrong: why an output is not what the oracle says, "" when it is; the bound is derived there.
    """

    name: str
    kernels: tuple[str, ...]
    output: str
    needs: tuple[str, ...]
    note: str
    sees: Callable[[Inputs, Shape], dict[str, np.ndarray]]
    candidates: Callable[[Any, str, Inputs, Shape], list[Candidate]]
    wrong: Callable[[np.ndarray, Reference, Inputs, Shape], str]


_MODULES: Final = ("linears", "selection", "triton_gemv", "triton_attention")


@functools.cache
def rivals() -> tuple[Rival, ...]:
    """Every rival that is declared; none of them loads torch by being listed."""
    found: list[Rival] = []
    for name in _MODULES:
        found += importlib.import_module(f"{__name__}.{name}").RIVALS
    return tuple(found)


def rivals_of(kernel: str) -> list[Rival]:
    """The rivals of one of our kernels."""
    return [r for r in rivals() if kernel in r.kernels]


def load_torch() -> Any:
    """The module torch. Errors: Refusal in one line, when it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise Refusal(
            f"--rival torch: torch is not installed here ({error});"
            ' install it, for example with: pip install "dsv4-lab[rivals]"'
        ) from None
    return torch


def missing(rival: Rival) -> str:
    """Which package of a rival is not installed; "" when all are."""
    for name in rival.needs:
        try:
            importlib.import_module(name)
        except ImportError:
            return name
    return ""


def outside(got: np.ndarray, wanted: np.ndarray, allowed: np.ndarray, bound: str) -> str:
    """How many elements leave their bounds, in words; "" when none does."""
    error = np.abs(got.astype(np.float64) - wanted)
    bad = ~(error <= allowed)
    if got.shape != wanted.shape or not bad.any():
        return "" if got.shape == wanted.shape else f"shape {got.shape} instead of {wanted.shape}"
    worst = np.unravel_index(int(np.argmax(np.where(bad, error, 0.0))), error.shape)
    return (
        f"{int(bad.sum())} of {bad.size} elements leave {bound}, the worst at"
        f" {tuple(int(i) for i in worst)}: {got[worst]:.6g} instead of {wanted[worst]:.6g}"
    )
