"""Filtered distributions of logit rows, draws from them, and what a proposal must remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dsv4.speculation.philox import gumbel_words, open_uniform, residual_u01
from dsv4.speculation.refusals import refuse

FILTERED_OUT = -3.4e38
"""What a draw sees in the place of a token that the filters removed."""


@dataclass(frozen=True, slots=True)
class SpecSampling:
    """Temperature, seed, filters (0 or 1 is off) and penalties (neutral by default)."""

    temp: float
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty_last_n: int = 0
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0

    @property
    def penalises(self) -> bool:
        """Whether any penalty is on."""
        return (self.penalty_repeat, self.penalty_freq, self.penalty_present) != (1.0, 0.0, 0.0)

    def checked(self) -> SpecSampling:
        """Itself. Errors: DrafterRefusal when a draw would be undefined."""
        if not self.temp > 0:
            raise refuse(
                "temperature",
                "a sampled round",
                f"temperature {self.temp}",
                "set it above 0, or leave sampling off for greedy tokens",
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise refuse(
                "value",
                "a sampled round",
                f"top_k {self.top_k}, top_p {self.top_p}, min_p {self.min_p}",
                "top_k is 0 or more, top_p in (0, 1], min_p in [0, 1]",
            )
        return self


@dataclass(slots=True)
class Counters:
    """The two streams of a generation: device events and host uniforms, wrapping at 2^32."""

    sctr: int = 0
    uctr: int = 0

    def events(self, count: int = 1) -> int:
        """The first of that many device events."""
        first, self.sctr = self.sctr, (self.sctr + count) & 0xFFFFFFFF
        return first

    def uniforms(self, count: int) -> int:
        """The first of that many host uniforms."""
        first, self.uctr = self.uctr, (self.uctr + count) & 0xFFFFFFFF
        return first


@dataclass(frozen=True, slots=True)
class RowsProposal:
    """Drafts drawn from whole rows: tokens, the biased rows, and the filters they were drawn with.

    The rows and filters are arrays of the backend that drew.
    """

    tokens: tuple[int, ...]
    logits: Any
    stats: Any


@dataclass(frozen=True, slots=True)
class SelectorProposal:
    """Drafts drawn among candidates: tokens, all ids and probabilities [N,K], the chosen ones."""

    tokens: tuple[int, ...]
    ids: np.ndarray
    q_rows: np.ndarray
    q_chosen: np.ndarray


Proposal = RowsProposal | SelectorProposal


class Sampler(Protocol):
    """Draws from logit rows of one backend. Stats are (mx, th, z) by row, [N,3]."""

    def argmax(self, row: Any) -> int:
        """The first largest token of a row."""

    def stats(self, rows: Any, sampling: SpecSampling) -> Any:
        """The filters of every row."""

    def gather(self, rows: Any, stats: Any, ids: Sequence[int], temp: float) -> np.ndarray:
        """The filtered probability of ids[i] in row i, float32 on the host."""

    def gumbel(self, rows: Any, stats: Any, sampling: SpecSampling, event: int) -> int:
        """A draw from one filtered row [1,V]."""

    def residual_dense(
        self, p: Any, p_stats: Any, q: Any, q_stats: Any, sampling: SpecSampling, event: int
    ) -> int:
        """A draw from max(0, p - q) of two filtered rows [1,V]."""

    def residual_sparse(
        self,
        p: Any,
        p_stats: Any,
        ids: np.ndarray,
        q: np.ndarray,
        sampling: SpecSampling,
        event: int,
    ) -> int:
        """A draw from max(0, p - q), q given for a few tokens; duplicates add."""


def filter_stats(row: np.ndarray, sampling: SpecSampling) -> np.ndarray:
    """(mx, th, z): the largest logit, the least kept exp((x - mx) / T), and the kept mass.

    Several filters keep the intersection of their sets, each on the full distribution; ties with a
    boundary all stay.
    """
    mx = float(np.max(row))
    e = np.exp((np.asarray(row, np.float64) - mx) / sampling.temp)
    th = float(sampling.min_p)
    if 0 < sampling.top_k < len(e) or sampling.top_p < 1:
        falling = np.sort(e)[::-1]
        if 0 < sampling.top_k < len(e):
            th = max(th, float(falling[sampling.top_k - 1]))
        if sampling.top_p < 1:
            mass = np.cumsum(falling)
            reached = int(np.searchsorted(mass, sampling.top_p * mass[-1]))
            th = max(th, float(falling[min(reached, len(falling) - 1)]))
    return np.array([mx, th, float(e[e >= th].sum())])


def filtered(row: np.ndarray, stats: np.ndarray, temp: float) -> np.ndarray:
    """The probabilities that a row's filters leave. [V]."""
    e = np.exp((np.asarray(row, np.float64) - stats[0]) / temp)
    if not stats[2] > 0:
        raise refuse("internal", "a filtered row", "no token left", "take the stats of this row")
    return np.asarray(np.where(e >= stats[1], e / stats[2], 0.0))


def gumbel_draw(row: np.ndarray, stats: np.ndarray, sampling: SpecSampling, event: int) -> int:
    """The token with the largest x/T + Gumbel number among the kept ones."""
    u = open_uniform(gumbel_words(sampling.seed, event, len(row))).astype(np.float64)
    kept = np.exp((np.asarray(row, np.float64) - stats[0]) / sampling.temp) >= stats[1]
    scores = np.where(kept, row / sampling.temp - np.log(-np.log(u)), FILTERED_OUT)
    return int(np.argmax(scores))


def residual_draw(p: np.ndarray, q: np.ndarray, u: float, fallback: int) -> int:
    """The first token with residual mass at which the running mass reaches u of the total."""
    r = np.maximum(np.asarray(p, np.float64) - q, 0.0)
    total = float(r.sum())
    if not total > 0:
        return fallback
    reached = (np.cumsum(r) >= u * total) & (r > 0)
    return int(np.argmax(reached)) if reached.any() else int(np.flatnonzero(r)[-1])


@dataclass(frozen=True, slots=True)
class HostSampler:
    """A `Sampler` on NumPy rows, in float64."""

    def argmax(self, row: Any) -> int:
        """The first largest token of a row."""
        return int(np.argmax(row))

    def stats(self, rows: Any, sampling: SpecSampling) -> Any:
        """The filters of every row, [N,3]."""
        return np.stack([filter_stats(row, sampling) for row in np.atleast_2d(rows)])

    def gather(self, rows: Any, stats: Any, ids: Sequence[int], temp: float) -> np.ndarray:
        """The filtered probability of ids[i] in row i."""
        found = [filtered(r, s, temp)[i] for r, s, i in zip(rows, stats, ids, strict=True)]
        return np.array(found, np.float32)

    def gumbel(self, rows: Any, stats: Any, sampling: SpecSampling, event: int) -> int:
        """A draw from one filtered row."""
        return gumbel_draw(rows[0], stats[0], sampling, event)

    def residual_dense(
        self, p: Any, p_stats: Any, q: Any, q_stats: Any, sampling: SpecSampling, event: int
    ) -> int:
        """A draw from max(0, p - q) of two filtered rows."""
        left = filtered(p[0], p_stats[0], sampling.temp)
        right = filtered(q[0], q_stats[0], sampling.temp)
        return residual_draw(left, right, residual_u01(sampling.seed, event), self.argmax(p[0]))

    def residual_sparse(
        self,
        p: Any,
        p_stats: Any,
        ids: np.ndarray,
        q: np.ndarray,
        sampling: SpecSampling,
        event: int,
    ) -> int:
        """A draw from max(0, p - q), q given for a few tokens."""
        left = filtered(p[0], p_stats[0], sampling.temp)
        right = np.zeros_like(left)
        np.add.at(right, np.asarray(ids, np.int64), np.asarray(q, np.float64))
        return residual_draw(left, right, residual_u01(sampling.seed, event), self.argmax(p[0]))
