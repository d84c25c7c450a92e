"""Index lists: a round that is not in the ring yet, against a map of the plain list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_TRANSIENT = 9000  # a row number that no ring slot and no block has


def _rounds(window: int, S: int, around: list[int]) -> Make:
    """Rounds that start at every position near these, each with queries 8 before to 8 after it."""

    def make(rng: Rng) -> dict[str, Any]:
        near = sorted({p + d for p in around for d in range(-3, 4) if p + d >= 0})
        return dict(first=np.array(near, np.int32), window=window, S=S)

    return make


_ROUNDS = (
    Trial("window of 16", _rounds(16, 24, [0, 16, 32, 51])),
    Trial("window of 5", _rounds(5, 9, [0, 5, 10, 1001])),
    Trial("window of 1", _rounds(1, 3, [0, 1, 2])),
    Trial("window of 128", _rounds(128, 160, [0, 127, 128, 255, 256, 1048575])),
    Trial("no tail", _rounds(16, 16, [16, 32])),
)


def _queries(first: int) -> dict[str, np.ndarray]:
    positions = np.arange(max(0, first - 8), first + 9, dtype=np.int32)
    return dict(positions=positions, blocks=((positions + 1) // 4).astype(np.int32))


def _redirected(bench: Bench, i: Inputs) -> Outputs:
    return {
        f"ids of the round from {first}": bench.run(
            "index_lists_redirect",
            **_queries(first),
            first=np.array([first], np.int32),
            S=i["S"],
            window=i["window"],
            ring=i["window"],
            base=i["window"],
            transient=_TRANSIENT,
        )["ids"]
        for first in i["first"].tolist()
    }


def _mapped(bench: Bench, i: Inputs) -> Outputs:
    """The plain list; then each slot's position is worked out and mapped by hand."""
    window, found = i["window"], {}
    for first in i["first"].tolist():
        queries = _queries(first)
        sizes = dict(S=i["S"], window=window, ring=window, base=window)
        ids = bench.run("index_lists_window", **queries, **sizes)["ids"]
        slots, p = ids[:, :window], queries["positions"][:, None]
        backing = p - (p % window - slots + window) % window
        late = (slots >= 0) & (backing >= first)
        ids[:, :window] = np.where(late, _TRANSIENT + backing - first, slots)
        found[f"ids of the round from {first}"] = ids
    return found


def _single(start: int, T: int, S: int, ring: int, **more: Any) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        positions = np.arange(start, start + T, dtype=np.int32)
        blocks = ((positions + 1) // 4).astype(np.int32)
        sizes = dict(S=S, window=16, ring=ring, base=ring)
        return dict(positions=positions, blocks=blocks, **sizes, **more)

    return make


def _single_trials(**more: Any) -> tuple[Trial, ...]:
    return (
        Trial("from the start", _single(0, 20, 27, 16, **more)),
        Trial("around the window", _single(12, 8, 20, 16, **more)),
        Trial("longer ring", _single(27, 9, 31, 22, **more)),
        Trial("no tail", _single(30, 5, 16, 16, **more)),
    )


TWINS = (
    Twin(
        name="index_lists_redirect_as_map",
        left="index_lists_redirect",
        right="index_lists_window, slots mapped by position",
        kernels=("index_lists_redirect", "index_lists_window"),
        trials=_ROUNDS,
        run_left=_redirected,
        run_right=_mapped,
    ),
    rows_alone("index_lists_window", axis="T", trials=_single_trials()),
    rows_alone(
        "index_lists_redirect",
        axis="T",
        trials=_single_trials(first=np.array([29], np.int32), transient=_TRANSIENT),
    ),
)
