"""The rows each query attends to: its window, then the compressed blocks it sees."""

from dsv4.axes import Shape
from dsv4.spec import (
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    Out,
    Require,
    Scalar,
    Stride,
    Tile,
    Work,
    kernel,
)

_IDS = Exact(because="integer arithmetic rounds nothing")
_REQUIRES = (
    Require("window >= 1", because="a query always sees itself"),
    Require("S >= window", because="the list must hold the window; the blocks come after it"),
    Require("ring >= window", because="two positions of one window would share a slot"),
)


def _geometry(s: Shape) -> Geometry:
    return Geometry((-(-s.S // 128), s.T), 128)


def _work(s: Shape) -> Work:
    return Work(read=8 * s.T, write=4 * s.T * s.S)


index_lists_window = kernel(
    name="index_lists_window",
    family="index_lists",
    summary="window slots, then block rows, of every query",
    args=[
        In("positions", I32, "T"),
        In("blocks", I32, "T"),
        Out("ids", I32, "T S", strided=True),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("window", I32),
        Scalar("ring", I32),
        Scalar("base", I32),
    ],
    geometry=_geometry,
    writes=dict(ids=Tile(x=("S", 128), y=("T", 1), per_thread=1)),
    contract=dict(ids=_IDS),
    work=_work,
    requires=_REQUIRES,
    batch_invariant="T",
)

index_lists_redirect = kernel(
    name="index_lists_redirect",
    family="index_lists",
    summary="the same for a round whose own rows are not in the ring yet",
    args=[
        In("positions", I32, "T"),
        In("blocks", I32, "T"),
        In("first", I32, "1"),
        Out("ids", I32, "T S", strided=True),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("window", I32),
        Scalar("ring", I32),
        Scalar("base", I32),
        Scalar("transient", I32),
    ],
    geometry=_geometry,
    writes=dict(ids=Tile(x=("S", 128), y=("T", 1), per_thread=1)),
    contract=dict(ids=_IDS),
    work=_work,
    requires=_REQUIRES,
    batch_invariant="T",
)
