"""The drafter's confidence in a token, a raw logit."""

from dsv4.spec import (
    BF16,
    F32,
    F64,
    I32,
    Dim,
    Geometry,
    In,
    Out,
    Require,
    Tile,
    Within,
    Work,
    kernel,
)

confidence = kernel(
    name="confidence",
    family="confidence",
    summary="hidden row and previous token's row against one projection, sums in f64",
    args=[
        In("x", F32, "T D", align=16),
        In("w1", BF16, "V R", align=16),
        In("ids", I32, "T"),
        In("proj", BF16, "D+R", align=16),
        Out("y", F32, "T"),
        Dim("V"),
        Dim("D"),
        Dim("R"),
    ],
    requires=(
        Require("D % 8 == 0 and R % 8 == 0", "a lane takes 8 elements of the one or the other"),
        Require(
            "D + R <= 262144", "one sum in double for every 256 elements lies in shared memory"
        ),
    ),
    geometry=lambda s: Geometry(grid=s.T, block=512),
    writes=dict(y=Tile(x=("T", 1))),
    contract=dict(
        y=Within(
            "dot",
            depth="8 + 5 + ceil(ceil((D+R)/256)/32) + 4",
            terms="D + R",
            accumulator=F64,
            because="exact products fused into f64 sums: 8 a lane, butterfly, parts; one rounding"
            " to f32",
        )
    ),
    work=lambda s: Work(
        read=4 * s.T * s.D + 2 * s.T * s.R + 2 * (s.D + s.R),
        write=4 * s.T,
        flops=2 * s.T * (s.D + s.R),
    ),
    batch_invariant="T",
)
