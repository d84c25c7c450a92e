"""Joining the experts of a token: an ordered sum over its slots, then the shared expert."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import F32, I32, Dim, Exact, Geometry, In, Out, Tile, Work, kernel

_SUM = Exact(because="the order of the sum and its roundings to float32 are prescribed")
_WIDTHS = {True: 4, False: 1}


def _constants(s: Shape) -> Mapping[str, int]:
    return dict(WIDTH=_WIDTHS[s.D % 4 == 0])


def _geometry(s: Shape) -> Geometry:
    return Geometry(grid=(s.T, -(-s.D // (256 * _WIDTHS[s.D % 4 == 0]))), block=256)


combine = kernel(
    name="combine",
    family="combine",
    summary="contributions of a token's experts, summed by ascending expert id",
    args=[
        In("contributions", F32, "T A D", align=16),
        In("order", I32, "T A"),
        Out("y", F32, "T D", align=16),
        Dim("A"),
        Dim("D"),
    ],
    constants=_constants,
    geometry=_geometry,
    writes=dict(y=Tile(x=("T", 1), y=("D", 1024))),
    contract=dict(y=_SUM),
    work=lambda s: Work(read=4 * s.T * s.A * (s.D + 1), write=4 * s.T * s.D, flops=s.T * s.A * s.D),
    batch_invariant="T",
)

combine_shared = kernel(
    name="combine_shared",
    family="combine",
    summary="the same, and the shared expert added last",
    args=[
        In("contributions", F32, "T A D", align=16),
        In("order", I32, "T A"),
        In("shared", F32, "T D", align=16),
        Out("y", F32, "T D", align=16),
        Dim("A"),
        Dim("D"),
    ],
    constants=_constants,
    geometry=_geometry,
    writes=dict(y=Tile(x=("T", 1), y=("D", 1024))),
    contract=dict(y=_SUM),
    work=lambda s: Work(
        read=4 * s.T * s.A * (s.D + 1) + 4 * s.T * s.D,
        write=4 * s.T * s.D,
        flops=s.T * (s.A + 1) * s.D,
    ),
    batch_invariant="T",
)
