"""The pieces of a gated DeltaNet layer between its projections."""

from dsv4.spec import (
    F32,
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    Out,
    Require,
    Scalar,
    Stride,
    Tile,
    Ulp,
    Within,
    Work,
    kernel,
)

_THREADS, _WARPS = 256, 4

gated_delta_conv = kernel(
    name="gated_delta_conv",
    family="gated_delta",
    summary="silu of a depthwise convolution over each channel's newest inputs",
    args=[
        In("u", F32, "T D"),
        In("w", F32, "D C"),
        In("state", F32, "D C-1"),
        Out("y", F32, "T D"),
        Dim("D"),
        Dim("C"),
    ],
    requires=(Require("C >= 2", "one tap has no older inputs"),),
    geometry=lambda s: Geometry(grid=(s.T, -(-s.D // _THREADS)), block=_THREADS),
    writes=dict(y=Tile(x=("T", 1), y=("D", _THREADS))),
    contract=dict(
        y=Within(
            "dot",
            depth="C + 6",
            because="a chain of the taps through silu, whose slope is below 1.1; then exponential,"
            " denominator and quotient",
        )
    ),
    work=lambda s: Work(
        read=4 * s.T * s.D + 8 * s.D * s.C, write=4 * s.T * s.D, flops=2 * s.T * s.D * s.C
    ),
)

gated_delta_tail = kernel(
    name="gated_delta_tail",
    family="gated_delta",
    summary="the newest inputs of every channel, oldest first",
    args=[
        In("u", F32, "T D"),
        In("state", F32, "D taps-1"),
        Out("after", F32, "D taps-1"),
        Dim("T"),
        Dim("D"),
        Scalar("taps", I32),
    ],
    geometry=lambda s: Geometry(grid=-(-s.D // _THREADS), block=_THREADS),
    writes=dict(after=Tile(x=("D", _THREADS))),
    contract=dict(after=Exact(because="elements are copied")),
    work=lambda s: Work(read=4 * s.D * (s.taps - 1), write=4 * s.D * (s.taps - 1)),
)

gated_delta_unit = kernel(
    name="gated_delta_unit",
    family="gated_delta",
    summary="each head's lanes over their length, times a gain",
    args=[
        In("x", F32, "T G K", strided=True),
        Out("y", F32, "T G K"),
        Dim("G"),
        Dim("K"),
        Stride("x_stride", of="x"),
        Scalar("gain", F32),
        Scalar("eps", F32),
    ],
    requires=(Require("eps > 0", "a head of zeros would divide by zero"),),
    geometry=lambda s: Geometry(grid=(s.T, s.G), block=32),
    writes=dict(y=Tile(x=("T", 1), y=("G", 1))),
    contract=dict(
        y=Within(
            "norm",
            depth="ceil(K/32) + 5",
            because="f32 sum of positive squares: a lane's chain, the butterfly; then a norm",
        )
    ),
    work=lambda s: Work(
        read=4 * s.T * s.G * s.K, write=4 * s.T * s.G * s.K, flops=3 * s.T * s.G * s.K
    ),
    batch_invariant="T",
)

gated_delta_decay = kernel(
    name="gated_delta_decay",
    family="gated_delta",
    summary="how much of its state each head keeps, and how much of the error it learns",
    args=[
        In("a", F32, "T H"),
        In("b", F32, "T H"),
        In("a_log", F32, "H"),
        In("dt_bias", F32, "H"),
        Out("factor", F32, "T H"),
        Out("beta", F32, "T H"),
        Dim("T"),
        Dim("H"),
    ],
    geometry=lambda s: Geometry(grid=-(-s.T * s.H // _THREADS), block=_THREADS),
    contract=dict(
        factor=Ulp(0.51, because="computed in f64 and rounded once"),
        beta=Ulp(0.51, because="computed in f64 and rounded once"),
    ),
    work=lambda s: Work(read=8 * s.T * s.H, write=8 * s.T * s.H, flops=100 * s.T * s.H),
    batch_invariant="T",
)

# One step: the decay's product, a dot (a lane's chain, the butterfly), the error, times beta, and
# the fused update; the output is one more dot.
_STEP = "(ceil(K/32) + 9)"

gated_delta_scan = kernel(
    name="gated_delta_scan",
    family="gated_delta",
    summary="T steps of the gated delta rule over a matrix state for each head",
    args=[
        In("q", F32, "T G K"),
        In("k", F32, "T G K"),
        In("v", F32, "T H D", strided=True),
        In("factor", F32, "T H"),
        In("beta", F32, "T H"),
        In("state", F32, "H D K"),
        Out("y", F32, "T H D"),
        Out("after", F32, "H D K"),
        Dim("T"),
        Dim("G"),
        Dim("H"),
        Dim("D"),
        Dim("K"),
        Stride("v_stride", of="v"),
    ],
    requires=(
        Require("K <= 256", "a lane keeps at most 8 elements of a column"),
        Require("H % G == 0", "key heads are shared by equally many value heads"),
    ),
    constants=lambda s: dict(WIDTH=s.K),
    geometry=lambda s: Geometry(grid=(s.H, -(-s.D // _WARPS)), block=32 * _WARPS),
    writes=dict(
        y=Tile(x=("H", 1), y=("D", _WARPS)),
        after=Tile(x=("H", 1), y=("D", _WARPS)),
    ),
    contract=dict(
        y=Within(
            "recurrence",
            depth=f"T*{_STEP} + ceil(K/32) + 5",
            terms="T*(2*K + 3)",
            because="every term passes the roundings of each step, and of one dot at the end",
        ),
        after=Within(
            "recurrence",
            depth=f"T*{_STEP}",
            terms="T*(2*K + 3)",
            because="every term passes the roundings of each step",
        ),
    ),
    work=lambda s: Work(
        read=4 * s.H * s.D * s.K + 4 * s.T * (2 * s.G * s.K + s.H * s.D),
        write=4 * s.H * s.D * s.K + 4 * s.T * s.H * s.D,
        flops=7 * s.T * s.H * s.D * s.K,
    ),
)
