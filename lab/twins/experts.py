"""Experts: the ordered sum of a token's slots against one scatter-add an expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import wide
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, f32

Make = Callable[[Rng], dict[str, Any]]


def _selected(T: int, A: int, D: int, E: int, *, descending: bool = False) -> Make:
    """Distinct experts for every token, their contributions, and their slots by ascending id."""

    def make(rng: Rng) -> dict[str, Any]:
        ids = np.stack([rng.permutation(E)[:A] for _ in range(T)])
        ids = -np.sort(-ids, axis=1) if descending else ids
        return dict(
            contributions=f32(rng, (T, A, D), wide(-20, 20)),
            ids=ids,
            order=np.argsort(ids, axis=1, kind="stable").astype(np.int32),
            shared=f32(rng, (T, D)),
        )

    return make


_SELECTIONS = (
    Trial("one token", _selected(1, 6, 4096, 256)),
    Trial("any order", _selected(7, 6, 515, 256)),
    Trial("descending ids", _selected(5, 6, 516, 256, descending=True)),
    Trial("few experts", _selected(8, 6, 260, 8)),
    Trial("one expert a token", _selected(4, 1, 33, 9)),
    Trial("prompt", _selected(300, 6, 4096, 256), "full"),
)


def _one_by_one(bench: Bench, i: Inputs) -> np.ndarray:
    """From zero, every expert in ascending order adds its contribution to its tokens."""
    T, _, D = i["contributions"].shape
    y = np.zeros((T, D), np.float32)
    for expert in np.unique(i["ids"]):
        tokens, slots = np.nonzero(i["ids"] == expert)
        rows = np.ascontiguousarray(i["contributions"][tokens, slots])
        y = bench.run("movement_scatter_add", x=rows, ids=tokens.astype(np.int32), y=y)["y"]
    return y


def _combined(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("combine", contributions=i["contributions"], order=i["order"])


def _scattered(bench: Bench, i: Inputs) -> Outputs:
    return {"y": _one_by_one(bench, i)}


def _combined_with_shared(bench: Bench, i: Inputs) -> Outputs:
    names = ("contributions", "order", "shared")
    return bench.run("combine_shared", **{name: i[name] for name in names})


def _scattered_then_shared(bench: Bench, i: Inputs) -> Outputs:
    routed = _one_by_one(bench, i)
    added = bench.run("movement_add", x=i["shared"].reshape(-1), y=routed.reshape(-1))
    return {"y": added["y"].reshape(routed.shape)}


TWINS = (
    Twin(
        name="combine_as_scatter_add",
        left="combine",
        right="movement_scatter_add from zero, experts ascending",
        kernels=("combine", "movement_scatter_add"),
        trials=_SELECTIONS,
        run_left=_combined,
        run_right=_scattered,
    ),
    Twin(
        name="combine_shared_as_scatter_add",
        left="combine_shared",
        right="movement_scatter_add from zero, then movement_add",
        kernels=("combine_shared", "movement_scatter_add", "movement_add"),
        trials=_SELECTIONS,
        run_left=_combined_with_shared,
        run_right=_scattered_then_shared,
    ),
)
