"""Factors on rows: a soft cap, a gate."""

from dsv4.spec import F32, Dim, Geometry, In, Out, Scalar, Stride, Tile, Ulp, Work, kernel

_ONCE = Ulp(0.51, because="computed in f64 and rounded once")

scale_softcap = kernel(
    name="scale_softcap",
    family="scale",
    summary="rows times a factor, softly capped where a cap is given",
    args=[
        In("x", F32, "T D"),
        Out("y", F32, "T D"),
        Dim("D"),
        Scalar("factor", F32),
        Scalar("cap", F32),
    ],
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(y=_ONCE),
    work=lambda s: Work(read=4 * s.T * s.D, write=4 * s.T * s.D, flops=30 * s.T * s.D),
    batch_invariant="T",
)

scale_gate = kernel(
    name="scale_gate",
    family="scale",
    summary="rows times the sigmoid of a gate",
    args=[
        In("x", F32, "T D"),
        In("gate", F32, "T D", strided=True),
        Out("y", F32, "T D"),
        Dim("D"),
        Stride("gate_stride", of="gate"),
    ],
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(y=_ONCE),
    work=lambda s: Work(read=8 * s.T * s.D, write=4 * s.T * s.D, flops=30 * s.T * s.D),
    batch_invariant="T",
)
