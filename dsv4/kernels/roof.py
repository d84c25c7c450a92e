"""The read-only stream that the speed of every other kernel is told against."""

from dsv4.spec import I32, I64, Dim, Exact, Geometry, In, Option, Out, Tile, Work, kernel

roof_read = kernel(
    name="roof_read",
    family="roof",
    summary="the xor of each block's contiguous share: a read-only stream of memory",
    args=[In("x", I32, "N", align=16), Out("y", I32, "B"), Dim("N", I64)],
    options=(Option("threads", (512, 256)), Option("loads", (8, 4))),
    constants=lambda s: dict(THREADS=s.threads, LOADS=s.loads),
    geometry=lambda s: Geometry(grid=s.B, block=s.threads),
    writes=dict(y=Tile(x=("B", 1))),
    contract=dict(y=Exact(because="xor of integers has no rounding and no order")),
    work=lambda s: Work(read=4 * s.N, write=4 * s.B),
)
