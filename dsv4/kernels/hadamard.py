"""The Hadamard transform of the indexer's queries and keys."""

from dsv4.spec import F32, Dim, Geometry, InOut, Require, Scalar, Within, Work, kernel

# log2(K) additions and the product with the scale, as an axis expression.
_DEPTH = " + ".join(["2", *(f"(K >= {2**i})" for i in range(2, 11))])


def _rows_per_block(width: int) -> int:
    """Rows of a block of 4 warps: a warp takes one row, or as many short ones as it has lanes."""
    return 128 // min(width, 32)


hadamard = kernel(
    name="hadamard",
    family="hadamard",
    summary="rows times the Sylvester matrix, in place, scaled at the end",
    args=[InOut("x", F32, "T K", align=16), Dim("T"), Scalar("scale", F32)],
    constants=lambda s: dict(WIDTH=s.K),
    geometry=lambda s: Geometry(grid=-(-s.T // _rows_per_block(s.K)), block=128),
    contract=dict(
        x=Within(
            "dot", because="log2(K) rounded additions, then one product", depth=_DEPTH, terms="K"
        )
    ),
    work=lambda s: Work(
        read=4 * s.T * s.K, write=4 * s.T * s.K, flops=s.T * s.K * s.K.bit_length()
    ),
    requires=(
        Require("K >= 2", because="a row of one element has no butterfly"),
        Require("1024 % K == 0", because="the transform is defined for powers of two up to 1024"),
    ),
    batch_invariant="T",
)
