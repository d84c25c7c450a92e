"""Choosing the experts of a token: by score, or from the table of its token id."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    I32,
    I64,
    Dim,
    Exact,
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

_REQUIRES = (
    Require("A <= E", because="the experts of a token are distinct"),
    Require("A <= 32", because="one warp holds the slots of a token, one a lane"),
    Require("E <= 1024", because="a lane of the selecting warp keeps at most 32 experts"),
)
_WEIGHTS = Within(
    "dot",
    depth="A + 5",
    because="A - 1 additions, a division, a product; a score may be one spacing off where its"
    " exact value lies between two floats, which counts twice, in share and sum",
)
_WRITES = dict(ids=Tile(x=("T", 1)), weights=Tile(x=("T", 1)), order=Tile(x=("T", 1)))


def _constants(s: Shape) -> Mapping[str, int]:
    return dict(PER_LANE=-(-s.E // 32))


router = kernel(
    name="router",
    family="router",
    summary="the experts with the largest biased scores, ties to the lowest id",
    args=[
        In("raw", F32, "T E"),
        In("bias", F32, "E"),
        Out("ids", I32, "T A"),
        Out("weights", F32, "T A"),
        Out("order", I32, "T A"),
        Dim("E"),
        Dim("A"),
        Scalar("scale", F32),
    ],
    requires=_REQUIRES,
    constants=_constants,
    geometry=lambda s: Geometry(grid=s.T, block=256),
    writes=_WRITES,
    contract=dict(
        ids=Exact(
            because="scores are the nearest float32, score + bias is one float32 addition, and"
            " equals go to the lowest id"
        ),
        weights=_WEIGHTS,
        order=Exact(because="a permutation that the ids decide"),
    ),
    work=lambda s: Work(read=4 * s.T * s.E + 4 * s.E, write=12 * s.T * s.A, flops=60 * s.T * s.E),
    batch_invariant="T",
)

router_hash = kernel(
    name="router_hash",
    family="router",
    summary="the experts that a table names for a token id, weighed by their scores",
    args=[
        In("raw", F32, "T E"),
        In("table", I64, "V A"),
        In("tokens", I32, "T"),
        Out("ids", I32, "T A"),
        Out("weights", F32, "T A"),
        Out("order", I32, "T A"),
        Dim("E"),
        Dim("A"),
        Dim("V"),
        Scalar("scale", F32),
    ],
    requires=_REQUIRES,
    constants=_constants,
    geometry=lambda s: Geometry(grid=s.T, block=32),
    writes=_WRITES,
    contract=dict(
        ids=Exact(because="ids are copied; one that names no expert becomes -1"),
        weights=_WEIGHTS,
        order=Exact(because="a permutation that the ids decide"),
    ),
    work=lambda s: Work(read=s.T * (4 + 12 * s.A), write=12 * s.T * s.A, flops=60 * s.T * s.A),
    batch_invariant="T",
)
