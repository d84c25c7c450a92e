"""Rotary embedding of lane pairs half a rotary width apart, in place."""

from dsv4.spec import F32, I32, Dim, Geometry, In, InOut, Require, Stride, Within, Work, kernel

rope_neox = kernel(
    name="rope_neox",
    family="rope_neox",
    summary="the first R lanes of every head rotated in pairs (j, j + R/2) by its row's position",
    args=[
        InOut("x", F32, "T H K", strided=True),
        In("table", F32, "P R"),
        In("positions", I32, "T"),
        Dim("T"),
        Dim("H"),
        Dim("K"),
        Dim("R"),
        Dim("P"),
        Stride("x_stride", of="x"),
    ],
    requires=(
        Require("R % 2 == 0 and R <= K", "lanes rotate in pairs, and lie at the start of a head"),
        Require("T*H*R < 4294967296", "pairs are counted in 32 bits"),
    ),
    geometry=lambda s: Geometry(grid=-(-s.T * s.H * s.R // 512), block=256),
    contract=dict(
        x=Within("dot", depth="2", because="two rounded products and their sum; the rest is kept")
    ),
    work=lambda s: Work(
        read=4 * s.T * s.H * s.R + 4 * s.T * s.R + 4 * s.T,
        write=4 * s.T * s.H * s.R,
        flops=3 * s.T * s.H * s.R,
    ),
    batch_invariant="T",
)
