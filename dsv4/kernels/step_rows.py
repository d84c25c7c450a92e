"""Where the rows of a step lie and what they see, for every compress ratio in one launch."""

from dsv4.spec import (
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    Out,
    Require,
    Scalar,
    Tile,
    Work,
    kernel,
)

_WHOLE = Exact(because="integers of a position, which nothing rounds")
_THREADS = 128

step_rows = kernel(
    name="step_rows",
    family="step_rows",
    reads_early=(),
    summary="positions, slots, blocks and lists of a step's rows, for every compress ratio",
    args=[
        In("start", I32, "1"),
        In("rules", I32, "G 5"),
        Out("places", I32, "G 7 T"),
        Out("ids", I32, "G T S"),
        Dim("T"),
        Dim("S"),
        Scalar("window", I32),
    ],
    requires=(
        Require("window >= 1", because="a row always sees itself"),
        Require("S >= window", because="a list holds the window; the blocks come after it"),
    ),
    geometry=lambda s: Geometry((-(-s.S // _THREADS), s.T, s.G), _THREADS),
    writes=dict(ids=Tile(x=("S", _THREADS), y=("T", 1), z=("G", 1), per_thread=1)),
    contract=dict(places=_WHOLE, ids=_WHOLE),
    work=lambda s: Work(read=4 + 20 * s.G, write=4 * s.G * s.T * (7 + s.S)),
)
