"""Grouped-query attention on tensor cores, all rows over the same keys."""

from dsv4.spec import (
    F32,
    I32,
    Dim,
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

ROWS, KEYS = 16, 64

sdpa_bf16 = kernel(
    name="sdpa_bf16",
    family="sdpa_bf16",
    summary="attention over the first keys for all rows, on bf16 tensor cores",
    args=[
        In("q", F32, "T H K"),
        In("k", F32, "N G K"),
        In("v", F32, "N G K"),
        Out("y", F32, "T H K"),
        Dim("T"),
        Dim("H"),
        Dim("N"),
        Dim("G"),
        Scalar("last", I32),
        Scalar("scale", F32),
    ],
    requires=(
        Require("K % 16 == 0 and K <= 128", "a product adds 16 lanes, and a tile has 48 KiB"),
        Require("H % G == 0", "key heads are shared by equally many query heads"),
    ),
    constants=lambda s: dict(WIDTH=s.K),
    geometry=lambda s: Geometry(grid=(-(-s.T // ROWS), s.H), block=128),
    writes=dict(y=Tile(x=("T", ROWS), y=("H", 1))),
    contract=dict(
        y=Within(
            "softmax",
            depth=f"2*K + 2*N + 2*ceil(N/{KEYS}) + 32768",
            because="a tensor core truncates, so each of its additions counts twice; a weight is"
            " rounded to bf16, which is 2^15 roundings to f32; a rescaling for each tile",
        )
    ),
    work=lambda s: Work(
        read=4 * s.T * s.H * s.K + 8 * s.N * s.G * s.K,
        write=4 * s.T * s.H * s.K,
        flops=4 * s.T * s.H * s.N * s.K,
    ),
    batch_invariant="T",
    # The order of sums inside a tensor core is the card's own.
    portable=False,
)
