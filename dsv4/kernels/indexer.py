"""Scores of compressed blocks for the indexer's selection."""

from collections.abc import Callable

from dsv4.axes import Shape
from dsv4.spec import (
    BF16,
    F32,
    F64,
    I32,
    Dim,
    Format,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Scalar,
    Tile,
    Within,
    Work,
    kernel,
)

_WARPS = 8
_ENOUGH_BLOCKS = 128  # to keep a large GPU busy
DEPTH = "K + 1 + ceil(H/32) + 5"  # a chain, a weight, a lane's heads, the fold of 32 lanes


def _keys_per_warp(s: Shape) -> int:
    """The most keys for which there are still enough blocks; no sum depends on it."""
    return next((k for k in (8, 4) if s.T * -(-s.N // (_WARPS * k)) >= _ENOUGH_BLOCKS), 2)


def _geometry(s: Shape) -> Geometry:
    return Geometry((-(-s.N // (_WARPS * _keys_per_warp(s))), s.T), 32 * _WARPS)


def _work(element: Format) -> Callable[[Shape], Work]:
    return lambda s: Work(
        read=element.size_bytes * s.K * (s.T * s.H + s.N) + 4 * s.T * (s.H + 1),
        write=4 * s.T * s.N,
        flops=2 * s.T * s.N * s.H * (s.K + 1),
    )


def _score(name: str, element: Format, accumulator: Format) -> Kernel:
    return kernel(
        name=name,
        family="indexer",
        summary=f"weighted positive products of queries and block keys, in {accumulator.name}",
        args=[
            In("q", element, "T H K", align=16),
            In("keys", element, "N K", align=16),
            In("weights", F32, "T H"),
            In("visible", I32, "T"),
            Out("score", F32, "T N"),
            Dim("H"),
            Dim("K"),
            Dim("N"),
            Scalar("wscale", F32),
        ],
        constants=lambda s: dict(KEYS_PER_WARP=_keys_per_warp(s)),
        geometry=_geometry,
        writes=dict(score=Tile(y=("T", 1))),
        contract=dict(
            score=Within(
                "dot",
                depth=DEPTH,
                terms="H*K",
                accumulator=accumulator,
                because="a chain over k, weight times wscale, a lane's heads, the fold of 32 lanes",
            )
        ),
        work=_work(element),
        requires=(Require("K % 4 == 0", because="rows are loaded 16 bytes at a time"),),
        batch_invariant="T",
    )


indexer_score = _score("indexer_score", F32, F64)
indexer_score_f32 = _score("indexer_score_f32", BF16, F32)
