"""Grouped dynamic causal convolution around the sublayers of a drafter."""

from dsv4.spec import F32, Dim, Geometry, In, Option, Out, Require, Tile, Within, Work, kernel

dynconv = kernel(
    name="dynconv",
    family="dynconv",
    summary="each channel's newest rows of the block, weighted by base and own coefficients",
    args=[
        In("x", F32, "T D"),
        In("base", F32, "2 C D"),
        In("own", F32, "T 2 C G"),
        Out("y", F32, "T D"),
        Dim("D"),
        Dim("C"),
        Dim("G"),
    ],
    options=(Option("stage", (0, 1)),),
    requires=(Require("D % G == 0", "groups are equally many neighbouring channels"),),
    constants=lambda s: dict(STAGE=s.stage),
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(
        y=Within("dot", depth="C + 1", because="a rounded coefficient, then a chain of the taps")
    ),
    work=lambda s: Work(
        read=4 * s.T * s.D + 4 * s.C * s.D + 4 * s.T * s.C * s.G,
        write=4 * s.T * s.D,
        flops=3 * s.T * s.D * s.C,
    ),
)
