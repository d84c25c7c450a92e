"""Rotary embedding: a block of rows with its positions against each row alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.twins import Trial
from lab.twins.contents import Rng, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]


def _block(H: int, K: int, R: int, P: int, positions: list[int], *, inverse: int = 0) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        angles = rng.uniform(-np.pi, np.pi, (P, R // 2))
        table = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(P, R)
        return dict(
            x=f32(rng, (len(positions), H, K)),
            table=table.astype(np.float32),
            positions=np.array(positions, np.int32),
            inverse=inverse,
        )

    return make


_BLOCKS = tuple(
    Trial(f"{name}, {'inverse' if inverse else 'forward'}", _block(*sizes, inverse=inverse), level)
    for inverse in (0, 1)
    for name, level, sizes in (
        ("both ends of the table", "quick", (3, 10, 6, 300, [0, 299, 0, 299])),
        ("positions ascending", "quick", (5, 64, 64, 40, list(range(17, 25)))),
        ("positions in any order", "quick", (1, 512, 64, 129, [128, 3, 3, 77, 0])),
        ("outside the table", "quick", (2, 12, 4, 9, [-1, 8, 9])),
        ("queries", "full", (64, 512, 64, 4099, [0, 4098, 4095, 1, 2, 3])),
    )
)

TWINS = (rows_alone("rope", axis="T", trials=_BLOCKS),)
