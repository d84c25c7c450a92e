"""Both products of the queries' latent in one launch, with the indexer's heads finished."""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.kernels.linear_bf16 import BECAUSE, CARD_WARPS, DEPTH, PARTS
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


def _passes(s: Shape) -> int:
    """As many as let all rows go through the card's warps at once, and a head at least."""
    tiles = (s.N + s.H * s.D) // _PASS_ROWS
    blocks = CARD_WARPS // max(8, int(evaluate(PARTS, s)))
    return int(max(s.D // _PASS_ROWS, -(-tiles // blocks)))


def _fitting_passes(s: Shape) -> int:
    """The parts' sums wait in at most 40 KiB of shared memory."""
    fitting = 320 // (int(evaluate(PARTS, s)) * s.M)
    return int(max(s.D // _PASS_ROWS, min(_passes(s), fitting)))


def _constants(s: Shape) -> Mapping[str, int]:
    parts = int(evaluate(PARTS, s))
    return dict(
        ROWS=s.M, PARTS=parts, SETS=1, TILES=4, PASSES=_fitting_passes(s),
        TAIL=int(s.K % 128 != 0), WIDTH=s.D,
    )  # fmt: skip


def _geometry(s: Shape) -> Geometry:
    c = _constants(s)
    beside = c["PASSES"] - s.D // _PASS_ROWS
    left = s.N // _PASS_ROWS - s.H * beside
    return Geometry(grid=s.H + max(0, -(-left // c["PASSES"])), block=32 * c["PARTS"])


queries_fp8 = kernel(
    name="queries_fp8",
    family="queries",
    reads_early=("codes", "scales", "index_codes", "index_scales"),
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
        Out("index_q", F32, "M H D"),
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
    geometry=_geometry,
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
        write=4 * s.M * (s.N + s.H * s.D),
        flops=2 * s.M * (s.N + s.H * s.D) * s.K,
    ),
    batch_invariant="M",
    portable=False,
)
