"""The indexer's scores and the ordered selection of the largest, in one launch."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.kernels.indexer import DEPTH
from dsv4.spec import (
    BF16,
    F32,
    I32,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Out,
    Require,
    Scalar,
    Stride,
    Within,
    Work,
    kernel,
)

BINS = 2048  # of a score's first digit
_WARPS = 16


def _key_tiles(s: Shape) -> int:
    """Eights of keys of a warp: as many as leave a large GPU a block for each multiprocessor."""
    return 2 if s.T * -(-s.N // (16 * _WARPS)) >= 128 else 1


def _constants(s: Shape) -> Mapping[str, int]:
    places = max(2, 1 << (min(s.S, s.N) - 1).bit_length())
    return {"WIDTH": s.K, "KEY_TILES": _key_tiles(s), "PLACES": places}


indexer_select = kernel(
    name="indexer_select",
    family="indexer_select",
    reads_early=(),
    summary="scores of block keys, and the ids of the largest in order, in one launch",
    args=[
        In("q", BF16, "T H K", align=16),
        In("keys", BF16, "N K", align=16),
        In("weights", F32, "T H"),
        In("visible", I32, "T"),
        Out("score", F32, "T N"),
        Out("ids", I32, "T S", strided=True),
        Out("nans", I32, "T"),
        InOut("bins", I32, f"T {BINS}"),
        InOut("ticket", I32, "T"),
        Dim("H"),
        Dim("N"),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("wscale", F32),
        Scalar("offset", I32),
    ],
    constants=_constants,
    geometry=lambda s: Geometry((-(-s.N // (8 * _WARPS * _key_tiles(s))), s.T), 32 * _WARPS),
    contract=dict(
        score=Within(
            "dot",
            depth=DEPTH,
            terms="H*K",
            because="the bytes of indexer_score_f32: tensor cores only where every sum is exact",
        ),
        ids=Exact(because="score, then index, is a total order: there is one right list"),
        nans=Exact(because="an integer count"),
        bins=Exact(because="counts, zero again after every launch"),
        ticket=Exact(because="the last block of a row puts it back to 0"),
    ),
    work=lambda s: Work(
        read=2 * s.K * (s.T * s.H + s.N) + 4 * s.T * (s.H + 1),
        write=4 * s.T * (s.S + 1),
        flops=2 * s.T * s.N * s.H * (s.K + 1),
    ),
    requires=(
        Require("K % 16 == 0 and K <= 128", because="a lane holds its share of a key in registers"),
        Require("H <= 64", because="a thread adds two heads of 32"),
        Require("min(S, N) <= 1024", because="twice as many entries are sorted in shared memory"),
    ),
    batch_invariant="T",
)
