"""Float32 islands: rows alone, weights in either format, rows of w that share a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.twins import Inputs, Side, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, bf16_as_f32, f32, repeated_rows
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_DOTS = {"island_dots": "f32", "island_dots_f32": "f32"}
_DOTS_BF16 = {"island_dots_bf16": "island_dots", "island_dots_bf16_f32": "island_dots_f32"}


# ------------------------------------------------------------------ many rows are single rows


def _dots(weights: Callable[..., np.ndarray]) -> Callable[..., Make]:
    def sized(T: int, N: int, K: int, *, repeated: bool = False) -> Make:
        def make(rng: Rng) -> dict[str, Any]:
            x = f32(rng, (T, K))
            return dict(x=repeated_rows(x) if repeated else x, w=weights(rng, (N, K)))

        return make

    return sized


def _row_trials(sized: Callable[..., Make]) -> tuple[Trial, ...]:
    return (
        *(Trial(f"T={t}", sized(t, 37, 1032)) for t in range(1, 9)),
        Trial("more than eight rows", sized(19, 24, 520)),
        Trial("repeated rows", sized(8, 131, 264, repeated=True)),
        Trial("parts of K", sized(4, 5, 17 * 256 + 8)),
        Trial("tall", sized(6, 4099, 256)),
        Trial("mixes", sized(6, 24, 16384)),
        Trial("gate", sized(8, 256, 4096), "full"),
        Trial("compressor", sized(6, 1024, 4096), "full"),
    )


# ------------------------------------------------------------------ rows of w that share a block


def _shared_rows(sized: Callable[..., Make]) -> tuple[Trial, ...]:
    """Heights around every number of rows that a warp or a block can share, N % 8 != 0 too."""
    small = (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33, 63, 65, 129, 131)
    return (
        *(Trial(f"N={n}", sized(3, n, 264)) for n in small),
        Trial("above 256", sized(2, 259, 264)),
        Trial("above 1024", sized(2, 1027, 264)),
        Trial("Markov rank", sized(1, 4099, 256)),
    )


def _all_rows(kernel: str) -> Side:
    return lambda bench, i: bench.run(kernel, **i)


def _turned(kernel: str) -> Side:
    """The rows of w moved on by some places, and the columns of the result moved back."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        by = max(1, len(i["w"]) // 3)
        y = bench.run(kernel, x=i["x"], w=np.roll(i["w"], by, axis=0))["y"]
        return {"y": np.ascontiguousarray(np.roll(y, -by, axis=1))}

    return run


def _turned_twin(kernel: str, weights: Callable[..., np.ndarray]) -> Twin:
    return Twin(
        name=f"{kernel}_rows_of_w",
        left=f"{kernel}, rows of w in place",
        right=f"{kernel}, rows of w moved into other blocks",
        kernels=(kernel,),
        trials=_shared_rows(_dots(weights)),
        run_left=_all_rows(kernel),
        run_right=_turned(kernel),
    )


# ------------------------------------------------------------------ weights in bf16 and in f32


def _in_bf16(kernel: str, wider: str) -> Twin:
    return Twin(
        name=f"{kernel}_as_f32_weights",
        left=kernel,
        right=f"{wider} on the widened weights",
        kernels=(kernel, wider),
        trials=_row_trials(_dots(bf16)),
        run_left=_all_rows(kernel),
        run_right=lambda bench, i: bench.run(wider, x=i["x"], w=bf16_as_f32(i["w"])),
    )


TWINS = (
    *(rows_alone(k, axis="T", trials=_row_trials(_dots(f32))) for k in _DOTS),
    *(rows_alone(k, axis="T", trials=_row_trials(_dots(bf16))) for k in _DOTS_BF16),
    *(_turned_twin(k, f32) for k in _DOTS),
    *(_turned_twin(k, bf16) for k in _DOTS_BF16),
    *(_in_bf16(kernel, wider) for kernel, wider in _DOTS_BF16.items()),
)
