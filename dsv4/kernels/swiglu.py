"""The activation between the two halves of an expert, with and without the routing weight."""

from dsv4.spec import F32, Dim, Geometry, In, Out, Scalar, Tile, Ulp, Work, kernel

# u = 2^-24 bounds the relative error of one rounding, and u |y| is at most one spacing of y. On the
# way to y: e^g within 1.1 ulp = 2.2 u, 1 + e, the quotient and the product with the gate's mantissa
# 1 u each, together 5.2 spacings; the last product is within half a spacing. Scaling is exact, or
# rounds to a subnormal, where the relative part has shrunk by half and more.
_PLAIN = "exp 2.2, denominator, quotient, gate 1 each, then half a spacing: 5.7"
_WEIGHTED = "as swiglu with one more full rounding before the last: 6.7"

swiglu = kernel(
    name="swiglu",
    family="swiglu",
    summary="silu(gate) * up after clamps, f32",
    args=[
        In("gate", F32, "T D"),
        In("up", F32, "T D"),
        Out("y", F32, "T D"),
        Dim("D"),
        Scalar("limit", F32),
    ],
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(y=Ulp(6.0, because=_PLAIN)),
    work=lambda s: Work(read=8 * s.T * s.D, write=4 * s.T * s.D, flops=20 * s.T * s.D),
    batch_invariant="T",
)

swiglu_weighted = kernel(
    name="swiglu_weighted",
    family="swiglu",
    summary="silu(gate) * up * routing weight of the row after clamps, f32",
    args=[
        In("gate", F32, "T D"),
        In("up", F32, "T D"),
        In("weights", F32, "T"),
        Out("y", F32, "T D"),
        Dim("D"),
        Scalar("limit", F32),
    ],
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(y=Ulp(7.0, because=_WEIGHTED)),
    work=lambda s: Work(read=8 * s.T * s.D + 4 * s.T, write=4 * s.T * s.D, flops=21 * s.T * s.D),
    batch_invariant="T",
)
