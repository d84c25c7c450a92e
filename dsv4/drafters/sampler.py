"""Draws from logit rows on a device, by kernels: the same rules as the host's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.kernels.filter import (
    filter_gather,
    filter_gumbel,
    filter_residual_dense,
    filter_residual_sparse,
    filter_stats,
)
from dsv4.spec import I32
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import SpecSampling
from dsv4.targets.layers import Ops


@dataclass(frozen=True, slots=True)
class DeviceSampler:
    """A `Sampler` whose rows and filters, [N,3], stay on the device."""

    ops: Ops

    def argmax(self, row: Any) -> int:
        """The first largest token of a row."""
        return self._token(self.ops.argmax(row.reshape(1, -1)))

    def stats(self, rows: Any, sampling: SpecSampling) -> Any:
        """The filters of every row: largest logit, least kept exponential, kept mass."""
        found = [self.ops.empty(len(rows)) for _ in range(3)]
        self.ops.run(
            filter_stats,
            rows,
            mx=found[0],
            th=found[1],
            z=found[2],
            temp=sampling.temp,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        return self.ops.device.xp.stack(found, axis=1)

    def gather(self, rows: Any, stats: Any, ids: Sequence[int], temp: float) -> np.ndarray:
        """The filtered probability of ids[i] in row i, float32 on the host."""
        p = self.ops.empty(len(rows))
        at = self.ops.ints(np.asarray(ids))
        self.ops.run(filter_gather, rows, *self._columns(stats), at, out=p, temp=temp)
        return self.ops.device.to_numpy(p)

    def gumbel(self, rows: Any, stats: Any, sampling: SpecSampling, event: int) -> int:
        """A draw from one filtered row [1,V]."""
        out = self.ops.device.empty((1,), I32)
        drawn = _draw(sampling, event)
        self.ops.run(filter_gumbel, rows, *self._columns(stats), out=out, **drawn)
        return self._token(out)

    def residual_dense(
        self, p: Any, p_stats: Any, q: Any, q_stats: Any, sampling: SpecSampling, event: int
    ) -> int:
        """A draw from max(0, p - q) of two filtered rows [1,V]."""
        out = self.ops.device.empty((1,), I32)
        columns = (*self._columns(p_stats), q, *self._columns(q_stats))
        self.ops.run(filter_residual_dense, p, *columns, out=out, **_draw(sampling, event))
        return self._token(out)

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
        out = self.ops.device.empty((1,), I32)
        given = (self.ops.ints(ids.reshape(1, -1)), self.ops.vector(q.reshape(1, -1)))
        columns = (*self._columns(p_stats), *given)
        self.ops.run(filter_residual_sparse, p, *columns, out=out, **_draw(sampling, event))
        return self._token(out)

    def _columns(self, stats: Any) -> tuple[Any, Any, Any]:
        copy = self.ops.device.xp.ascontiguousarray
        return copy(stats[:, 0]), copy(stats[:, 1]), copy(stats[:, 2])

    def _token(self, ids: Any) -> int:
        token = int(self.ops.device.to_numpy(ids)[0])
        if token < 0:
            raise refuse("internal", "a draw", "no token left", "take the stats of this row")
        return token


def _draw(sampling: SpecSampling, event: int) -> dict[str, Any]:
    seed = sampling.seed & 0xFFFFFFFFFFFFFFFF
    signed = seed - 2**64 if seed >= 2**63 else seed
    return dict(temp=sampling.temp, seed=signed, event=event)
