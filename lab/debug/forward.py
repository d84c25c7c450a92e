"""The first operator of a forward pass whose own error leaves what its kernel may add.

A subject runs the model and shows a listener every tap, in order; the listener answers with the
value to go on with. One free pass gives what each tap inherits; one forced pass, in which every tap
is replaced by the reference's value as soon as it is seen, gives what each operator adds by itself.
A subject needs no more than `run`: the float64 model under some law is one. The engine's launches
have contracts of their own and are bisected by `lab.debug.engine_forward`, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.spec import Exact, Ulp

Listener = Callable[[str, str, np.ndarray], np.ndarray]
"""Called with a tap's name, the kernel that fills it ("" for several), and its value."""

_F32: Final = 2.0**-23
ROW_BOUND: Final = 2e-5
"""Of a row's largest value: what products and sums in float32 may add."""


class Subject(Protocol):
    """Something that runs a forward pass and shows its taps."""

    @property
    def name(self) -> str:
        """What people call it."""

    def run(self, tokens: np.ndarray, listen: Listener) -> None:
        """Run all positions of a sequence; go on with what the listener returns for each tap."""


@dataclass(frozen=True, slots=True)
class Tap:
    """One tap of one sample: what it inherits, what its operator adds, and the share of its bound.

    inherited: relative L2 error of the tap in the free pass, with all that came before it; NaN once
    shapes differ. added: the same on the reference's inputs.
    """

    number: int
    name: str
    kernel: str
    inherited: float
    added: float
    use: float


@dataclass(frozen=True, slots=True)
class Bisection:
    """Every tap at its worst over the samples, and in how many samples each was the first broken.

    first: the first broken tap in the order of the pass; None when all hold.
    """

    taps: tuple[Tap, ...]
    first: Tap | None
    samples: int
    broken_in: int

    def to_json(self) -> dict[str, Any]:
        """The document of `bisect forward`."""
        return {
            "samples": self.samples,
            "broken_in": self.broken_in,
            "first": _row(self.first) if self.first else None,
            "taps": [_row(t) for t in self.taps],
        }


@dataclass
class _Track:
    """The reference's values, in order, and what a subject's pass is compared with."""

    names: list[tuple[str, str]] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def keep(self, name: str, kernel: str, value: np.ndarray) -> np.ndarray:
        """Listen to the reference."""
        self.names.append((name, kernel))
        self.values.append(np.array(value, np.float64))
        return value


def bisect(
    subject: Subject, reference: Subject, samples: Sequence[np.ndarray], *, until: str = ""
) -> Bisection:
    """Every tap's inherited and added error, the worst of all samples.

    until: the name of the last tap to look at, or its beginning. Errors: SpecError when the two
    show different taps, or none.
    """
    return worst_of([_sample(subject, reference, tokens, until) for tokens in samples])


def worst_of(found: Sequence[Sequence[Tap]]) -> Bisection:
    """The bisection of the taps of every sample."""
    by_name: dict[str, list[Tap]] = {}
    for taps in found:
        for tap in taps:
            by_name.setdefault(tap.name, []).append(tap)
    worst = [_worst(taps) for taps in by_name.values()]
    worst.sort(key=lambda t: t.number)
    first = next((t for t in worst if t.use > 1), None)
    broken = (
        0
        if first is None
        else sum(any(t.name == first.name and t.use > 1 for t in taps) for taps in found)
    )
    return Bisection(tuple(worst), first, len(found), broken)


def _worst(taps: Sequence[Tap]) -> Tap:
    """One tap of several samples, each figure at its worst; NaN is worse than any number."""
    inherited, added = (
        float(np.max([getattr(t, name) for t in taps])) for name in ("inherited", "added")
    )
    return replace(taps[0], inherited=inherited, added=added, use=max(t.use for t in taps))


def _sample(subject: Subject, reference: Subject, tokens: np.ndarray, until: str) -> list[Tap]:
    track = _Track()
    reference.run(tokens, track.keep)
    if not track.names:
        raise SpecError(f"{reference.name} shows no taps; there is nothing to bisect")
    free: list[np.ndarray] = []
    forced: list[np.ndarray] = []

    def keep_free(name: str, kernel: str, value: np.ndarray) -> np.ndarray:
        free.append(np.array(value, np.float64))
        return value

    def force(name: str, kernel: str, value: np.ndarray) -> np.ndarray:
        at = len(forced)
        if at >= len(track.names) or track.names[at][0] != name:
            want = track.names[at][0] if at < len(track.names) else "the end"
            raise SpecError(
                f"{subject.name} shows the tap {name} where {reference.name} shows {want}\n"
                "  both must run the same operators in the same order"
            )
        if value.shape != track.values[at].shape:
            raise SpecError(
                f"{subject.name}: tap {name} is {list(value.shape)},"
                f" {reference.name} has {list(track.values[at].shape)}"
            )
        forced.append(np.array(value, np.float64))
        return track.values[at].astype(value.dtype)

    subject.run(tokens, keep_free)
    subject.run(tokens, force)
    return _measured(track, free, forced, until)


def _measured(
    track: _Track, free: list[np.ndarray], forced: list[np.ndarray], until: str
) -> list[Tap]:
    taps = []
    for number, ((name, kernel), want) in enumerate(zip(track.names, track.values, strict=True)):
        got = forced[number]
        mine = free[number] if number < len(free) else np.zeros(0)
        inherited = _relative(mine, want) if mine.shape == want.shape else float("nan")
        added, use = _relative(got, want), _use(got, want, kernel)
        taps.append(Tap(number, name, kernel, inherited, added, use))
        if until and name.startswith(until):
            break
    return taps


def _use(got: np.ndarray, want: np.ndarray, kernel: str) -> float:
    """The error over what the kernel's contract allows, at its worst element.

    Kernels that promise bits may be off by float32 storage alone; elementwise ones by their
    spacings; products and sums by ROW_BOUND of their row's largest value.
    """
    rows = np.abs(want).reshape(len(want), -1) if want.ndim else np.abs(want).reshape(1, 1)
    error = np.abs(got - want).reshape(rows.shape)
    error = np.where(np.isnan(error), np.inf, error)
    top = rows.max(axis=1, initial=0.0)[:, None]
    allowed = _share(kernel) * np.where(_by_element(kernel), rows, top)
    tiny = np.finfo(np.float32).tiny
    return float((error / np.maximum(allowed, tiny)).max(initial=0.0))


def _share(kernel: str) -> float:
    contract = _contract(kernel)
    if isinstance(contract, Exact):
        return _F32
    return contract.n * _F32 if isinstance(contract, Ulp) else ROW_BOUND


def _by_element(kernel: str) -> bool:
    return isinstance(_contract(kernel), Exact | Ulp)


def _contract(kernel: str) -> object:
    found = registry.kernels().get(kernel)
    return next(iter(found.spec.contract.values())) if found is not None else None


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    scale = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / (scale or 1.0)


def _row(tap: Tap) -> dict[str, Any]:
    return {"number": tap.number, "tap": tap.name, "kernel": tap.kernel,
            "inherited": tap.inherited, "added": tap.added, "bound_use": tap.use}  # fmt: skip
