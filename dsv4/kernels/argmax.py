"""Greedy selection: the token with the largest logit."""

from dsv4.spec import F32, I32, Dim, Exact, Geometry, In, Out, Tile, Work, kernel

argmax = kernel(
    name="argmax",
    family="argmax",
    summary="index of the first largest value of every row",
    args=[In("x", F32, "T V"), Out("y", I32, "T"), Dim("V")],
    geometry=lambda s: Geometry(grid=s.T, block=1024),
    writes=dict(y=Tile(x=("T", 1))),
    contract=dict(y=Exact(because="an index; ties go to the lowest, NaN loses to any number")),
    work=lambda s: Work(read=4 * s.T * s.V, write=4 * s.T, flops=s.T * s.V),
    batch_invariant="T",
)
