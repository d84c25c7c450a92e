"""Pooling of raw projection rows into compressed rows, a softmax over rows for every channel."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    F64,
    I32,
    Dim,
    Geometry,
    In,
    Option,
    Out,
    Require,
    Scalar,
    Tile,
    Within,
    Work,
    kernel,
)

_THREADS = 128
_OVERLAP = Option("overlap", (0, 1))
_ROWS = (
    In("kv", F32, "S (1+overlap)*K"),
    In("score", F32, "S (1+overlap)*K"),
    In("ape", F32, "C (1+overlap)*K"),
)
_SOFTMAX = Within(
    "softmax",
    depth="(1 + overlap)*C",
    terms="2*(1 + overlap)*C",
    accumulator=F64,
    because="sums and exponentials in f64; the logit's one addition in f32 is prescribed",
)


def parts_of(C: int, overlap: int) -> int:
    """Threads that share a channel: by C and overlap alone, because the order of sums follows."""
    return 4 if (1 + overlap) * C > 16 else 1


def _parts(s: Shape) -> int:
    return parts_of(s.C, s.overlap)


def _constants(s: Shape) -> Mapping[str, int]:
    return {"OVERLAP": s.overlap, "PARTS": _parts(s)}


def _columns(s: Shape) -> int:
    return -(-int(s.K) // (_THREADS // _parts(s)))


def _work(blocks: int, s: Shape) -> Work:
    rows = (1 + s.overlap) * s.K
    return Work(
        read=4 * rows * (2 * min(s.S, (blocks + s.overlap) * s.C) + s.C),
        write=4 * blocks * s.K,
        flops=4 * blocks * s.C * rows,
    )


compressor_pool = kernel(
    name="compressor_pool",
    family="compressor",
    summary="neighbouring blocks of raw rows pooled, from a buffer or a ring",
    args=[
        *_ROWS,
        Out("y", F32, "B K"),
        Dim("C"),
        Dim("K"),
        Scalar("first", I32),
        Scalar("ring", I32),
        Scalar("previous", I32),
    ],
    options=(_OVERLAP,),
    constants=_constants,
    geometry=lambda s: Geometry((_columns(s), s.B), _THREADS),
    writes=dict(y=Tile(y=("B", 1))),
    contract=dict(y=_SOFTMAX),
    work=lambda s: _work(s.B, s),
    requires=(
        Require("first >= 0", because="positions count from 0"),
        Require(
            "overlap*previous == 0 or first >= C", because="the block before must have a position"
        ),
        Require("previous == 0 or previous == 1", because="the block before exists or it does not"),
        Require("ring <= S or first + B*C <= S", because="rows past the last one cannot be read"),
        Require(
            "(B + overlap*previous)*C <= min(ring, S)",
            because="blocks that share rows of the ring cannot all be there",
        ),
    ),
)

compressor_pool_at = kernel(
    name="compressor_pool_at",
    family="compressor",
    summary="for every query the block that ends at its position, read on the device",
    args=[
        *_ROWS,
        In("positions", I32, "T"),
        Out("y", F32, "T K"),
        Dim("C"),
        Dim("K"),
        Scalar("ring", I32),
    ],
    options=(_OVERLAP,),
    constants=_constants,
    geometry=lambda s: Geometry((_columns(s), s.T), _THREADS),
    writes=dict(y=Tile(y=("T", 1))),
    contract=dict(y=_SOFTMAX),
    work=lambda s: _work(s.T, s),
    requires=(
        Require("ring <= S", because="rows past the last one cannot be read"),
        Require("ring >= (1 + overlap)*C", because="a block and the one before must fit the ring"),
    ),
    batch_invariant="T",
)
