"""Ordered selection of the largest scores of every row, ties to the lowest index."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
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


def _threads(s: Shape) -> int:
    return 1024 if s.N > 1024 else 256


def _constants(s: Shape) -> Mapping[str, int]:
    places = max(2, 1 << (min(s.S, s.N) - 1).bit_length())
    return {"THREADS": _threads(s), "PLACES": places}


topk = kernel(
    name="topk",
    family="topk",
    summary="ids of the largest visible scores, in order, ties to the lowest",
    args=[
        In("score", F32, "T N"),
        In("visible", I32, "T"),
        Out("ids", I32, "T S", strided=True),
        Out("nans", I32, "T"),
        Dim("N"),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("offset", I32),
    ],
    constants=_constants,
    geometry=lambda s: Geometry(s.T, _threads(s)),
    writes=dict(ids=Tile(x=("T", 1)), nans=Tile(x=("T", 1))),
    contract=dict(
        ids=Exact(because="score, then index, is a total order: there is one right list"),
        nans=Exact(because="an integer count"),
    ),
    work=lambda s: Work(read=4 * s.T * (s.N + 1), write=4 * s.T * (s.S + 1)),
    requires=(
        Require("min(S, N) <= 4096", because="the chosen entries are sorted in shared memory"),
    ),
    batch_invariant="T",
)
