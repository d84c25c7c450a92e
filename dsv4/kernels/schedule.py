"""Where the rows of a step lie, from a position that is read on the device."""

from dsv4.spec import (
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Out,
    Require,
    Scalar,
    Tile,
    Work,
    kernel,
)

_ROWS = Exact(because="integers of a position, which nothing rounds")
_LISTS = (
    "positions",
    "ring_rows",
    "raw_rows",
    "blocks",
    "index_rows",
    "store_rows",
    "firsts",
)

schedule = kernel(
    name="schedule",
    family="schedule",
    summary="positions, ring slots, visible and ending blocks of a step's rows",
    args=[
        In("start", I32, "1"),
        *(Out(name, I32, "T") for name in _LISTS),
        Dim("T"),
        Scalar("ring", I32),
        Scalar("raw", I32),
        Scalar("ratio", I32),
        Scalar("base", I32),
    ],
    requires=(
        Require("ring >= 1 and raw >= 1", because="a row needs a slot"),
        Require("ratio >= 0", because="0 is a layer without blocks"),
    ),
    geometry=lambda s: Geometry(grid=-(-s.T // 128), block=128),
    writes={name: Tile(x=("T", 128), per_thread=1) for name in _LISTS},
    contract={name: _ROWS for name in _LISTS},
    work=lambda s: Work(read=4, write=28 * s.T),
    batch_invariant="",
)

schedule_advance = kernel(
    name="schedule_advance",
    family="schedule",
    summary="the position of the next step",
    args=[InOut("start", I32, "N"), Scalar("count", I32)],
    requires=(Require("N == 1", because="a step has one position"),),
    geometry=lambda s: Geometry(grid=1, block=1),
    contract=dict(start=_ROWS),
    work=lambda s: Work(read=4, write=4),
)
