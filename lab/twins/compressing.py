"""The compressor: many blocks at once against each from its pending rows, and against a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import normal, sprinkled, wide
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_FAR = 2**31 - 1  # a ring longer than every position: rows in order


def _raw_rows(
    blocks: int, C: int, K: int, overlap: int, *, absent: float = 0.0, spread: bool = False
) -> Make:
    """Raw projections of whole blocks. absent: share of rows whose score is minus infinity."""

    def make(rng: Rng) -> dict[str, Any]:
        width = (1 + overlap) * K
        score = f32(rng, (blocks * C, width), wide(-5, 8) if spread else normal(3.0))
        score[rng.random(blocks * C) < absent] = -np.inf
        return dict(
            kv=f32(rng, (blocks * C, width), sprinkled(normal(), [0.0, -0.0], 0.05)),
            score=score,
            ape=f32(rng, (C, width)),
            overlap=overlap,
            K=K,
        )

    return make


_PREFILLS = (
    Trial("one block", _raw_rows(1, 4, 16, 1)),
    Trial("fine", _raw_rows(9, 4, 131, 1)),
    Trial("fine, absent rows", _raw_rows(12, 4, 20, 1, absent=0.4)),
    Trial("fine, scores far apart", _raw_rows(6, 4, 33, 1, spread=True)),
    Trial("fine latents", _raw_rows(8, 4, 512, 1)),
    Trial("coarse", _raw_rows(3, 128, 33, 0)),
    Trial("coarse, absent rows", _raw_rows(2, 128, 20, 0, absent=0.4)),
    Trial("coarse latents", _raw_rows(2, 128, 512, 0)),
    Trial("odd ratio", _raw_rows(5, 5, 129, 1)),
    Trial("long prompt", _raw_rows(512, 4, 512, 1), "full"),
    Trial("long coarse prompt", _raw_rows(16, 128, 512, 0), "full"),
)


def _all_blocks(bench: Bench, i: Inputs) -> Outputs:
    blocks = len(i["kv"]) // len(i["ape"])
    return bench.run("compressor_pool", **i, B=blocks, first=0, ring=_FAR, previous=0)


def _from_pending(bench: Bench, i: Inputs) -> Outputs:
    """A block at a time, as decode has it: the rows of the block before, then the block's own.

    Nothing precedes block 0: there the pending state holds zeros with scores of minus infinity.
    """
    C, found = len(i["ape"]), []
    for block in range(len(i["kv"]) // C):
        own, before = slice(block * C, (block + 1) * C), slice((block - 1) * C, block * C)
        pending = {name: i[name][own] for name in ("kv", "score")}
        if i["overlap"]:
            for name, nothing in (("kv", 0.0), ("score", -np.inf)):
                earlier = i[name][before] if block else np.full_like(i[name][own], nothing)
                pending[name] = np.concatenate([earlier, i[name][own]])
        place = dict(first=C * i["overlap"], previous=i["overlap"], ring=_FAR, B=1)
        fixed = dict(ape=i["ape"], overlap=i["overlap"], K=i["K"])
        found.append(bench.run("compressor_pool", **pending, **fixed, **place)["y"])
    return {"y": np.concatenate(found)}


def _from_ring(bench: Bench, i: Inputs) -> Outputs:
    """Position after position, as decode writes a ring; blocks are pooled where they end."""
    C, rows = len(i["ape"]), len(i["kv"])
    ring = (1 + i["overlap"]) * C + 3
    held = {n: np.full((ring, i[n].shape[1]), np.nan, np.float32) for n in ("kv", "score")}
    found = []
    for position in range(rows):
        for name, content in held.items():
            content[position % ring] = i[name][position]
        if (position + 1) % C:
            continue
        at = np.array([position], np.int32)
        fixed = dict(ape=i["ape"], overlap=i["overlap"], K=i["K"], ring=ring, positions=at)
        found.append(bench.run("compressor_pool_at", **held, **fixed)["y"])
    return {"y": np.concatenate(found)}


def _queries(C: int, K: int, overlap: int, ring: int, first: int, T: int) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        width = (1 + overlap) * K
        return dict(
            kv=f32(rng, (ring, width)),
            score=f32(rng, (ring, width)),
            ape=f32(rng, (C, width)),
            positions=np.arange(first, first + T, dtype=np.int32),
            ring=ring,
            overlap=overlap,
            K=K,
        )

    return make


_ROUNDS = (
    Trial("first positions", _queries(4, 33, 1, 14, 0, 8)),
    Trial("fine round", _queries(4, 512, 1, 14, 2044, 6)),
    Trial("coarse round", _queries(128, 65, 0, 134, 1276, 6)),
)


TWINS = (
    Twin(
        name="compressor_pool_blocks",
        left="compressor_pool over all blocks",
        right="compressor_pool, one block a launch from its pending rows",
        kernels=("compressor_pool",),
        trials=_PREFILLS,
        run_left=_all_blocks,
        run_right=_from_pending,
    ),
    Twin(
        name="compressor_pool_at_as_pool",
        left="compressor_pool over all blocks",
        right="compressor_pool_at, one position a launch from a ring",
        kernels=("compressor_pool", "compressor_pool_at"),
        trials=_PREFILLS,
        run_left=_all_blocks,
        run_right=_from_ring,
    ),
    rows_alone("compressor_pool_at", axis="T", trials=_ROUNDS),
)
