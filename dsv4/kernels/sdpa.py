"""Grouped-query attention of rows over a range of keys each."""

from dsv4.spec import (
    F32,
    I32,
    Arg,
    Dim,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Scalar,
    Tile,
    Within,
    Work,
    kernel,
)

TILE = 128


def _attention(name: str, summary: str, ranges: list[Arg]) -> Kernel:
    return kernel(
        name=name,
        family="sdpa",
        summary=summary,
        args=[
            In("q", F32, "T H K", align=16),
            In("k", F32, "N G K", align=16),
            In("v", F32, "N G K", align=16),
            *ranges,
            Out("y", F32, "T H K"),
            Dim("H"),
            Dim("N"),
            Dim("G"),
            Scalar("scale", F32),
        ],
        requires=(
            Require("K % 4 == 0 and K <= 512", "keys are read four lanes at a time"),
            Require("H % G == 0", "key heads are shared by equally many query heads"),
        ),
        constants=lambda s: dict(WIDTH=s.K),
        geometry=lambda s: Geometry(grid=(s.T, s.H), block=TILE),
        writes=dict(y=Tile(x=("T", 1), y=("H", 1))),
        contract=dict(
            y=Within(
                "softmax",
                depth=f"K + 1 + N + 2*ceil(N/{TILE})",
                because="a chain of the lanes for each score, one of the keys for each value, and"
                " a rescaling for each tile",
            )
        ),
        work=lambda s: Work(
            read=4 * s.T * s.H * s.K + 8 * s.N * s.G * s.K,
            write=4 * s.T * s.H * s.K,
            flops=4 * s.T * s.H * s.N * s.K,
        ),
        batch_invariant="T",
    )


_LAST = In("last", I32, "T")
_RANGE = [In("first", I32, "T"), _LAST]

sdpa_full = _attention("sdpa_full", "attention over the first keys of every row", [_LAST])
sdpa_scan = _attention("sdpa_scan", "attention over a window, walking all keys", _RANGE)
sdpa_clip = _attention("sdpa_clip", "attention over a window, walking only its tiles", _RANGE)
