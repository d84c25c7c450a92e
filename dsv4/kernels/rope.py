"""Rotary embedding of the last lanes of every head, in place."""

from dsv4.spec import (
    F32,
    I32,
    Dim,
    Geometry,
    In,
    InOut,
    Option,
    Require,
    Stride,
    Within,
    Work,
    kernel,
)

rope = kernel(
    name="rope",
    family="rope",
    summary="the last R lanes of every head rotated in pairs by its row's position",
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
    options=(Option("inverse", (0, 1)),),
    requires=(
        Require("R % 2 == 0 and R <= K", "lanes rotate in pairs, and lie at the end of a head"),
        Require("T*H*R < 4294967296", "pairs are counted in 32 bits"),
    ),
    constants=lambda s: dict(INVERSE=s.inverse),
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
