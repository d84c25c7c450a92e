"""Activation quantisers: FP8 and FP4 with power-of-two scales, in place or as codes."""

from dsv4.spec import (
    E4M3,
    F32,
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Option,
    Out,
    Require,
    Scalar,
    Stride,
    Tile,
    Work,
    kernel,
)

# Lanes of a row that one block covers, a warp for each group.
_FP8_LANES, _FP4_LANES = 512, 128

_EXACT = Exact(because="the scale and one rounding, both prescribed; everything else is exact")

act_quant_fp8_inplace = kernel(
    name="act_quant_fp8_inplace",
    family="act_quant",
    summary="lanes below prefix rounded through FP8, per group of lanes",
    args=[
        InOut("x", F32, "T S", strided=True),
        Stride("x_stride", of="x"),
        Scalar("prefix", I32),
    ],
    options=(Option("group", (64, 128)), Option("clamp_only", (0, 1))),
    requires=(
        Require("0 < prefix and prefix <= S", "the prefix lies within a row"),
        Require("prefix % group == 0", "a group has one scale and is whole"),
    ),
    constants=lambda s: dict(GROUP=s.group, CLAMP_ONLY=s.clamp_only),
    geometry=lambda s: Geometry(
        grid=(s.T, -(-s.prefix // _FP8_LANES)), block=32 * _FP8_LANES // s.group
    ),
    writes=dict(x=Tile(x=("T", 1), y=("S", _FP8_LANES))),
    contract=dict(x=_EXACT),
    work=lambda s: Work(read=4 * s.T * s.prefix, write=4 * s.T * s.prefix),
    batch_invariant="T",
)

act_quant_fp8 = kernel(
    name="act_quant_fp8",
    family="act_quant",
    summary="FP8 codes and one scale for each group of lanes",
    args=[
        In("x", F32, "T K", strided=True),
        Out("codes", E4M3, "T K"),
        Out("scales", F32, "T ceil(K/group)"),
        Dim("K"),
        Stride("x_stride", of="x"),
    ],
    options=(Option("group", (128, 64)),),
    requires=(Require("K % group == 0", "a group has one scale and is whole"),),
    constants=lambda s: dict(GROUP=s.group),
    geometry=lambda s: Geometry(
        grid=(s.T, -(-s.K // _FP8_LANES)), block=32 * _FP8_LANES // s.group
    ),
    writes=dict(codes=Tile(x=("T", 1), y=("K", _FP8_LANES))),
    contract=dict(codes=_EXACT, scales=_EXACT),
    work=lambda s: Work(read=4 * s.T * s.K, write=s.T * s.K + 4 * s.T * s.K // s.group),
    batch_invariant="T",
)

act_quant_fp4_inplace = kernel(
    name="act_quant_fp4_inplace",
    family="act_quant",
    summary="lanes rounded through FP4, per 32 lanes",
    args=[InOut("x", F32, "T K"), Dim("K")],
    requires=(Require("K % 32 == 0", "a group has one scale and is whole"),),
    geometry=lambda s: Geometry(grid=(s.T, -(-s.K // _FP4_LANES)), block=_FP4_LANES),
    writes=dict(x=Tile(x=("T", 1), y=("K", _FP4_LANES))),
    contract=dict(x=_EXACT),
    work=lambda s: Work(read=4 * s.T * s.K, write=4 * s.T * s.K),
    batch_invariant="T",
)
