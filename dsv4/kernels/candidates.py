"""The candidates of a slot: its few largest logits."""

from dsv4.spec import F32, I32, Dim, Exact, Geometry, In, Out, Require, Tile, Work, kernel

candidates_topk = kernel(
    name="candidates_topk",
    family="candidates",
    summary="the K largest elements of every row, falling, and their indices",
    args=[
        In("x", F32, "T V"),
        Out("values", F32, "T K"),
        Out("ids", I32, "T K"),
        Dim("V"),
        Dim("K"),
    ],
    requires=(Require("K <= 32 and K <= V", "every pass takes one element of the row"),),
    geometry=lambda s: Geometry(grid=s.T, block=512),
    writes=dict(values=Tile(x=("T", 1)), ids=Tile(x=("T", 1))),
    contract=dict(
        values=Exact(because="elements are copied"),
        ids=Exact(because="a total order: falling value, then rising index, NaN last"),
    ),
    work=lambda s: Work(read=4 * s.T * s.V, write=8 * s.T * s.K, flops=s.T * s.V * s.K),
    batch_invariant="T",
)
