"""Scores of compressed blocks for the indexer's selection."""

from dsv4.axes import Shape
from dsv4.card import MULTIPROCESSORS
from dsv4.spec import (
    BF16,
    F32,
    F64,
    I32,
    Arg,
    Dim,
    Format,
    Geometry,
    In,
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
_BESIDE = 2  # blocks of a multiprocessor at a time
WARP_KEYS = 32  # that a warp takes at a time on tensor cores

DEPTH = "80*ceil(K/32) + 1 + 2*ceil(H/16) + 3"
"""Roundings of a term where products are on tensor cores.

One of theirs is 40 at most (`linear_bf16.depth`), and two of them take 32 elements; then weight
times wscale, a lane's two heads of every sixteen by fused additions, and the fold of eight lanes.
"""

REQUIRES = (
    Require("K % 8 == 0 and K <= 128", because="a lane loads 8 elements and holds a row's share"),
)


def _keys_per_warp(s: Shape) -> int:
    """The most keys for which there are still enough blocks; no sum depends on it."""
    return next((k for k in (8, 4) if s.T * -(-s.N // (_WARPS * k)) >= _ENOUGH_BLOCKS), 2)


def shared_out(s: Shape, share: int, beside: int = 1) -> int:
    """Blocks of a row that get `share` of its keys, but no more than the card holds at once."""
    blocks = -(-int(s.N) // share)
    return max(1, min(blocks, MULTIPROCESSORS * beside // int(s.T)))


def work(s: Shape, element: Format, written: int) -> Work:
    """Bytes and operations; written: bytes."""
    return Work(
        read=element.size_bytes * s.K * (s.T * s.H + s.N) + 4 * s.T * (s.H + 1),
        write=written,
        flops=2 * s.T * s.N * s.H * (s.K + 1),
    )


def _args(element: Format, *sizes: Arg) -> list[Arg]:
    return [
        In("q", element, "T H K", align=16),
        In("keys", element, "N K", align=16),
        In("weights", F32, "T H"),
        In("visible", I32, "T"),
        Out("score", F32, "T N"),
        *sizes,
        Dim("N"),
        Scalar("wscale", F32),
    ]


indexer_score = kernel(
    name="indexer_score",
    family="indexer",
    summary="weighted positive products of queries and block keys, in f64",
    args=_args(F32, Dim("H"), Dim("K")),
    constants=lambda s: dict(KEYS_PER_WARP=_keys_per_warp(s)),
    geometry=lambda s: Geometry((-(-s.N // (_WARPS * _keys_per_warp(s))), s.T), 32 * _WARPS),
    writes=dict(score=Tile(y=("T", 1))),
    contract=dict(
        score=Within(
            "dot",
            depth="K + 1 + ceil(H/32) + 5",
            terms="H*K",
            accumulator=F64,
            because="a chain over k, weight times wscale, a lane's heads, the fold of 32 lanes",
        )
    ),
    work=lambda s: work(s, F32, 4 * s.T * s.N),
    requires=(Require("K % 4 == 0", because="rows are loaded 16 bytes at a time"),),
    batch_invariant="T",
)

indexer_score_f32 = kernel(
    name="indexer_score_f32",
    family="indexer",
    summary="weighted positive products of queries and block keys, on tensor cores",
    args=_args(BF16),
    constants=lambda s: dict(WIDTH=s.K, HEADS=s.H),
    geometry=lambda s: Geometry((shared_out(s, _WARPS * WARP_KEYS, _BESIDE), s.T), 32 * _WARPS),
    writes=dict(score=Tile(y=("T", 1))),
    contract=dict(
        score=Within(
            "dot",
            depth=DEPTH,
            terms="H*K",
            because="tensor-core sums, cut off at 24 bits; weight times wscale, a lane's heads, the"
            " fold of eight lanes",
        )
    ),
    work=lambda s: work(s, BF16, 4 * s.T * s.N),
    requires=(*REQUIRES, Require("H <= 128", because="all heads lie in shared memory")),
    batch_invariant="T",
    portable=False,
)
