"""Products of one to eight rows with bf16 weights.

The split of K and the sharing of rows live here for both linear families: `linear_fp8` must add in
the same order to give the same bytes.
"""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.spec import BF16, F32, Dim, Geometry, In, Out, Require, Stride, Within, Work, kernel

# Steps of 512 elements are dealt to this many warps: enough warps to keep a Hopper card's memory
# busy with few rows, none too many with many. It must not depend on M.
SPLIT = "min(ceil(K/512), 1 + (N < 16384) + 2*(N < 8192) + 4*(N < 1024))"

# 16 fused additions a step and lane, 5 levels of the butterfly, then the parts.
DEPTH = f"16*ceil(ceil(K/512)/{SPLIT}) + 5 + {SPLIT} - 1"


REQUIRES = (
    Require("M <= 8", "a verify round holds at most 8 rows; they share the weights' one pass"),
    Require("K % 16 == 0", "a lane takes 16 consecutive elements of a row"),
)


def constants(s: Shape) -> Mapping[str, int]:
    """How the rows of x and w and the steps of K are dealt to warps."""
    split = int(evaluate(SPLIT, s))
    return dict(
        ROWS=s.M, SPLIT=split, WARP_ROWS=4 if s.N >= 2048 else 2, WARPS=split * max(1, 8 // split)
    )


def geometry(s: Shape) -> Geometry:
    """One block for the rows of w that its warps share out."""
    c = constants(s)
    block_rows = c["WARPS"] // c["SPLIT"] * c["WARP_ROWS"]
    return Geometry(grid=-(-s.N // block_rows), block=32 * c["WARPS"])


linear_bf16 = kernel(
    name="linear_bf16",
    family="linear_bf16",
    summary="y = x w^T for 1 to 8 rows of x, bf16 weights",
    args=[
        In("w", BF16, "N K", align=16),
        In("x", BF16, "M K", strided=True, align=16),
        Out("y", F32, "M N", strided=True),
        Dim("N"),
        Dim("K"),
        Stride("x_stride", of="x"),
        Stride("y_stride", of="y"),
    ],
    requires=REQUIRES,
    constants=constants,
    geometry=geometry,
    contract=dict(
        y=Within(
            "dot",
            depth=DEPTH,
            terms="K",
            because="exact products fused into f32 sums: lanes, butterfly, parts of K",
        )
    ),
    work=lambda s: Work(
        read=2 * s.N * s.K + 2 * s.M * s.K, write=4 * s.M * s.N, flops=2 * s.M * s.N * s.K
    ),
    batch_invariant="M",
)
