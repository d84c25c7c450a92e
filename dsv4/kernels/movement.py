"""Moving rows: embedding, gathers, scatters, windows of columns, streams."""

from dsv4.spec import (
    BF16,
    F32,
    I32,
    I64,
    U8,
    Arg,
    Dim,
    Exact,
    Format,
    Geometry,
    In,
    InOut,
    Kernel,
    Out,
    Require,
    Scalar,
    Tile,
    Work,
    kernel,
)

_COPY = Exact(because="elements are copied; an id outside the array reads as NaN, or is skipped")
_ROUNDED = Exact(because="one rounding to the nearest bf16; an id outside the array is skipped")
_SUM = Exact(because="one float32 addition, the same as encoding the float64 sum")
_INSIDE = Require("0 <= offset and offset + C <= S", because="the columns must lie inside the row")

movement_embed = kernel(
    name="movement_embed",
    family="movement",
    summary="embedding rows of token ids, widened to f32",
    args=[In("table", BF16, "V D"), In("ids", I32, "T"), Out("y", F32, "T D"), Dim("V"), Dim("D")],
    geometry=lambda s: Geometry(grid=s.T, block=256),
    writes=dict(y=Tile(x=("T", 1))),
    contract=dict(y=_COPY),
    work=lambda s: Work(read=2 * min(s.T, s.V) * s.D + 4 * s.T, write=4 * s.T * s.D),
    batch_invariant="T",
)


def _gather(name: str, summary: str, fmt: Format) -> Kernel:
    """Rows of that format picked by id."""
    size = fmt.size_bytes
    return kernel(
        name=name,
        family="movement",
        summary=summary,
        args=[In("x", fmt, "S D"), In("ids", I32, "A"), Out("y", fmt, "A D"), Dim("S"), Dim("D")],
        geometry=lambda s: Geometry(grid=s.A, block=256),
        writes=dict(y=Tile(x=("A", 1))),
        contract=dict(y=_COPY),
        work=lambda s: Work(read=size * min(s.A, s.S) * s.D + 4 * s.A, write=size * s.A * s.D),
        batch_invariant="A",
    )


movement_gather = _gather("movement_gather", "bf16 rows picked by id", BF16)
movement_gather_bytes = _gather(
    "movement_gather_bytes", "rows of bytes picked by id: codes, or scales seen as bytes", U8
)

movement_gather_row = kernel(
    name="movement_gather_row",
    family="movement",
    summary="one f32 row, its id read on the device",
    args=[
        In("x", F32, "S D"),
        In("ids", I32, "A"),
        Out("y", F32, "D"),
        Dim("S"),
        Dim("D"),
        Scalar("slot", I32),
    ],
    geometry=lambda s: Geometry(grid=1, block=256),
    contract=dict(y=_COPY),
    work=lambda s: Work(read=4 * s.D + 4, write=4 * s.D),
    requires=(Require("0 <= slot and slot < A", because="the slot must be one of the ids"),),
)


def _scatter(name: str, summary: str, *, fmt: Format = F32, adds: bool = False) -> Kernel:
    """f32 rows that go to distinct ids; those that are added are read there first."""
    return kernel(
        name=name,
        family="movement",
        summary=summary,
        args=[In("x", F32, "A D"), In("ids", I32, "A"), InOut("y", fmt, "S D"), Dim("S"), Dim("D")],
        geometry=lambda s: Geometry(grid=s.A, block=256),
        contract=dict(y=_SUM if adds else _COPY if fmt is F32 else _ROUNDED),
        work=lambda s: Work(
            read=(8 if adds else 4) * s.A * s.D + 4 * s.A,
            write=fmt.size_bytes * s.A * s.D,
            flops=s.A * s.D if adds else 0,
        ),
    )


movement_scatter = _scatter("movement_scatter", "f32 rows written to distinct ids")
movement_scatter_bf16 = _scatter(
    "movement_scatter_bf16", "f32 rows written to distinct ids, rounded to bf16", fmt=BF16
)
movement_scatter_add = _scatter("movement_scatter_add", "f32 rows added to distinct ids", adds=True)

movement_add = kernel(
    name="movement_add",
    family="movement",
    summary="f32 sum in place",
    args=[In("x", F32, "N"), InOut("y", F32, "N"), Dim("N", I64)],
    geometry=lambda s: Geometry(grid=-(-s.N // 256), block=256),
    writes=dict(y=Tile(x=("N", 256), per_thread=1)),
    contract=dict(y=_SUM),
    work=lambda s: Work(read=8 * s.N, write=4 * s.N, flops=s.N),
    batch_invariant="N",
)


def _window(name: str, summary: str, *arrays: Arg) -> Kernel:
    """A window of C columns, `offset` into rows of S."""
    return kernel(
        name=name,
        family="movement",
        summary=summary,
        args=[*arrays, Dim("S"), Dim("C"), Scalar("offset", I32)],
        geometry=lambda s: Geometry(grid=s.T, block=256),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(y=_COPY),
        work=lambda s: Work(read=4 * s.T * s.C, write=4 * s.T * s.C),
        requires=(_INSIDE,),
        batch_invariant="T",
    )


movement_take = _window(
    "movement_take",
    "a window of columns out of wider rows",
    In("x", F32, "T S"),
    Out("y", F32, "T C"),
)

movement_place = _window(
    "movement_place",
    "columns written into a window of wider rows",
    In("x", F32, "T C"),
    InOut("y", F32, "T S"),
)

movement_repeat = kernel(
    name="movement_repeat",
    family="movement",
    summary="every row once per residual stream",
    args=[In("x", F32, "T D"), Out("y", F32, "T M D"), Dim("M"), Dim("D")],
    geometry=lambda s: Geometry(grid=(s.T, s.M), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("M", 1))),
    contract=dict(y=_COPY),
    work=lambda s: Work(read=4 * s.T * s.D, write=4 * s.T * s.M * s.D),
    batch_invariant="T",
)

movement_mean = kernel(
    name="movement_mean",
    family="movement",
    summary="mean over the residual streams",
    args=[In("x", F32, "T M D"), Out("y", F32, "T D"), Dim("M"), Dim("D")],
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // 256)), block=256),
    writes=dict(y=Tile(x=("T", 1), y=("D", 256))),
    contract=dict(y=Exact(because="the order of the sum and its roundings are prescribed")),
    work=lambda s: Work(read=4 * s.T * s.M * s.D, write=4 * s.T * s.D, flops=s.T * s.M * s.D),
    batch_invariant="T",
)
