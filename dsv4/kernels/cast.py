"""Rounding f32 to bf16: every input of a product that is not a float32 island."""

from dsv4.spec import BF16, F32, I64, Dim, Exact, Geometry, In, Out, Tile, Work, kernel

cast_bf16 = kernel(
    name="cast_bf16",
    family="cast",
    summary="f32 to bf16, nearest-even",
    args=[In("x", F32, "N"), Out("y", BF16, "N"), Dim("N", I64)],
    geometry=lambda s: Geometry(grid=-(-s.N // 256), block=256),
    writes=dict(y=Tile(x=("N", 256), per_thread=1)),
    contract=dict(y=Exact(because="one rounding, the one the model prescribes")),
    work=lambda s: Work(read=4 * s.N, write=2 * s.N),
    batch_invariant="N",
)
