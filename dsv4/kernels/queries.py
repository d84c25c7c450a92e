"""Both products of the queries' latent in one launch, with the indexer's heads finished."""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.kernels.linear_bf16 import BECAUSE, CARD_WARPS, DEPTH, PARTS, all_constants, room_bytes
from dsv4.spec import (
    BF16,
    E4M3,
    F32,
    I32,
    Dim,
    Geometry,
    In,
    Out,
    Require,
    Scalar,
    Within,
    Work,
    kernel,
)

_PASS_ROWS = 32


def _constants(s: Shape) -> Mapping[str, int]:
    """Passes: as many as let all rows go through the card's warps at once, and a head at least."""
    dealt = int(evaluate(PARTS, s))
    blocks = CARD_WARPS // max(8, dealt)
    passes = max(s.D // _PASS_ROWS, -(-(s.N + s.H * s.D) // (_PASS_ROWS * blocks)))
    deal = dict(PARTS=dealt, SETS=1, TILES=_PASS_ROWS // 8)
    return {**all_constants(s, deal, passes, 1, beside=4 * s.M * s.D), "WIDTH": s.D}


def geometry_of(c: Mapping[str, int], s: Shape) -> Geometry:
    """Blocks with a head, and those that the rows of w beside them leave work for."""
    rows = _PASS_ROWS
    beside = c["PASSES"] - s.D // rows
    left = s.N // rows - s.H * beside
    return Geometry(
        grid=s.H + max(0, -(-left // c["PASSES"])),
        block=32 * c["PARTS"],
        shared_bytes=room_bytes(c, 1),
    )


queries_fp8 = kernel(
    name="queries_fp8",
    family="queries",
    reads_early=("codes", "scales", "index_codes", "index_scales"),
    starts_early=True,
    summary="y = x w^T, and the indexer's queries from another w: rotated, transformed, in FP4",
    args=[
        In("codes", E4M3, "N K", align=16),
        In("scales", F32, "ceil(N/128) ceil(K/128)"),
        In("index_codes", E4M3, "H*D K", align=16),
        In("index_scales", F32, "ceil(H*D/128) ceil(K/128)"),
        In("x", BF16, "M K", align=16),
        In("table", F32, "P R"),
        In("positions", I32, "M"),
        Out("y", F32, "M N"),
        Out("index_q", BF16, "M H D"),
        Dim("N"),
        Dim("K"),
        Dim("H"),
        Dim("R"),
        Dim("P"),
        Scalar("scale", F32),
    ],
    requires=(
        Require("M <= 8", "a verify round holds at most 8 rows; they share the weights' one pass"),
        Require("K % 16 == 0", "a lane takes 16 consecutive elements of a row"),
        Require("K <= 1024", "the sums of all parts of a head must fit shared memory"),
        Require("N % 32 == 0", "a pass takes 32 rows of one matrix"),
        Require("D >= 32 and 128 % D == 0", "a head is whole passes, and a Hadamard transform"),
        Require("R % 2 == 0 and R <= D", "lanes rotate in pairs, and lie at the end of a head"),
    ),
    constants=_constants,
    geometry=lambda s: geometry_of(_constants(s), s),
    contract=dict(
        y=Within(
            "dot",
            depth=DEPTH,
            terms="K",
            because=BECAUSE + "; a scale is fused with the addition of its group",
        ),
        index_q=Within(
            "dot",
            because="the oracle's magnitude is how far the codes of a group can be off, counted in"
            " roundings, when the sums before them are off by their bounds",
        ),
    ),
    work=lambda s: Work(
        read=(s.N + s.H * s.D) * s.K
        + 4 * (-(-s.N // 128) + -(-s.H * s.D // 128)) * -(-s.K // 128)
        + 2 * s.M * s.K
        + 4 * s.M * s.R,
        write=s.M * (4 * s.N + 2 * s.H * s.D),
        flops=2 * s.M * (s.N + s.H * s.D) * s.K,
    ),
    batch_invariant="M",
    portable=False,
)
