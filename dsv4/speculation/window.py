"""How many rows a round verifies: a ladder of past rounds, or the drafter's own confidence."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dsv4.speculation.refusals import refuse
from dsv4.speculation.switches import Switches

POLICIES: Final = ("ladder", "confidence", "confidence-slot")
DEFAULT_TAU: Final = 0.5
SHORTEST: Final = 2
"""The draft is paid for before the window is known, so one draft always rides."""
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.I)


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """kind of POLICIES, and the threshold of the two confident ones (a float32 number).

    Ladder: one more than the last accepted run. Confidence: slots as long as the product of their
    probabilities reaches tau; confidence-slot: as long as each own does. floor: the fewest rows.
    """

    kind: str = "ladder"
    tau: float = DEFAULT_TAU
    floor: int = SHORTEST

    @property
    def is_confidence(self) -> bool:
        """Whether scores size every window."""
        return self.kind != "ladder"

    def size_window(self, raws: Sequence[float] | np.ndarray, cap: int) -> int:
        """The rows to verify for the raw scores of all slots, at most cap."""
        size = survival_window if self.kind == "confidence" else slot_window
        return size(raws, self.tau, cap, floor=self.floor)

    @classmethod
    def from_env_value(cls, value: str, tau: str, adapt: bool) -> WindowPolicy:
        """What the switch alone says; a ladder when it is empty. Errors: DrafterRefusal."""
        if value in ("", "ladder"):
            return cls()
        if value not in POLICIES:
            raise refuse("window-unknown", "DSV4_DSPARK_VT", repr(value), "name one, or unset it")
        if not adapt:
            raise refuse(
                "window-adapt",
                f"DSV4_DSPARK_VT={value}",
                "DSV4_DFLASH_ADAPT=0",
                "unset one of them",
            )
        return cls(value, parse_tau(tau))

    @classmethod
    def resolve_value(cls, value: str, tau: str, adapt: bool, has_head: bool) -> WindowPolicy:
        """The switch where it is set; else slots by confidence where there is a head."""
        if value:
            return cls.from_env_value(value, tau, adapt)
        if not adapt or not has_head:
            return cls()
        return cls("confidence-slot", parse_tau(tau))

    @classmethod
    def resolve(cls, switches: Switches, has_head: bool) -> WindowPolicy:
        """As `resolve_value`, of the switches."""
        return cls.resolve_value(switches.policy, switches.tau, switches.adapt, has_head)


def parse_tau(text: str) -> float:
    """The threshold, rounded to float32; 0.5 when empty. Errors: DrafterRefusal."""
    if not text:
        return DEFAULT_TAU
    if not _DECIMAL.fullmatch(text):
        raise refuse("tau-syntax", "DSV4_DSPARK_VT_TAU", repr(text), "write it like 0.5")
    with np.errstate(over="ignore"):
        tau = np.float32(text)
    if not 0 < tau < 1:
        raise refuse("tau-range", "DSV4_DSPARK_VT_TAU", text, "write a number between 0 and 1")
    return float(tau)


def survival_window(
    raws: Sequence[float] | np.ndarray, tau: float, cap: int, *, floor: int = SHORTEST
) -> int:
    """Rows to verify: slots before the product of probabilities falls below tau.

    Rounds: all arithmetic in float32.
    """
    survival, kept = np.float32(1.0), 0
    for p in _probabilities(raws):
        survival = np.float32(survival * p)
        if survival < np.float32(tau):
            break
        kept += 1
    return _clamp(1 + kept, cap, floor)


def slot_window(
    raws: Sequence[float] | np.ndarray, tau: float, cap: int, *, floor: int = SHORTEST
) -> int:
    """Rows to verify: slots before the first whose own probability is below tau.

    Rounds: as if every probability were worked out in float32; only those near tau are, for a round
    waits for this.
    """
    surely_below, surely_not = _scores_around(tau)
    kept = 0
    for raw in raws.tolist() if isinstance(raws, np.ndarray) else raws:
        if raw < surely_below:
            break
        if raw < surely_not and _probabilities([raw])[0] < np.float32(tau):
            break
        kept += 1
    return _clamp(1 + kept, cap, floor)


def ladder_step(accepted: int, cap: int) -> int:
    """Rows to verify after a round that accepted so many drafts: one past the run, at least 3."""
    return min(max(accepted + 2, 3), cap)


def window_cap(verify_t: int | None, default: int, most: int) -> int:
    """The widest window: the switch or the loop's default, within 2..most."""
    return min(max(default if verify_t is None else verify_t, SHORTEST), max(most, SHORTEST))


@functools.lru_cache(maxsize=64)
def _scores_around(tau: float) -> tuple[float, float]:
    """Scores below which, and from which on, the roundings of a probability cannot matter.

    A score's relative rounding is 2^-24, the exponential's some 2^-22, the quotient's 2^-24 of
    itself, which is 2^-24 / (1 - tau) of a score: the margin is more than four times their sum.
    """
    t = float(np.float32(tau))
    if not 0 < t < 1:
        return -math.inf, math.inf
    middle = math.log(t / (1 - t))
    margin = 2.0**-19 * (1 + abs(middle)) + 2.0**-21 / (1 - t)
    return middle - margin, middle + margin


def _probabilities(raws: Sequence[float] | np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-np.asarray(raws, np.float32)))


def _clamp(rows: int, cap: int, floor: int) -> int:
    return min(max(rows, floor), max(cap, floor))
