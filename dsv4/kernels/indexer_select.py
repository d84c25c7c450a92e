"""The indexer's scores and the ordered selection of the largest, in one launch."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.kernels.indexer import DEPTH, REQUIRES, WARP_KEYS, shared_out, work
from dsv4.spec import (
    BF16,
    F32,
    I32,
    I64,
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
    kernel,
)

BINS = 2048  # of a score's first digit
LIST = 16384  # entries that the last block reads instead of more than twice as many scores
_WARPS = 16
_SHARE = 128  # keys, at least, of a block among others: a turn for a warp of every scheduler


def _constants(s: Shape) -> Mapping[str, int]:
    return {"WIDTH": s.K, "HEADS": s.H, "LIST": s.L, "SHARE": _SHARE}


def _blocks(s: Shape) -> int:
    """Of a row: one that has all keys in one turn, or as many as share them out."""
    return 1 if s.N <= _WARPS * WARP_KEYS else shared_out(s, _SHARE)


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
        InOut("list", I64, "T L"),
        InOut("tickets", I32, "T 2"),
        Dim("N"),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("wscale", F32),
        Scalar("offset", I32),
    ],
    constants=_constants,
    geometry=lambda s: Geometry((_blocks(s), s.T), 32 * _WARPS),
    contract=dict(
        score=Within(
            "dot",
            depth=DEPTH,
            terms="H*K",
            because="the bytes of indexer_score_f32, from the same code",
        ),
        ids=Exact(because="score, then index, is a total order: there is one right list"),
        nans=Exact(because="an integer count"),
        bins=Exact(because="counts, zero again after every launch"),
        list=Exact(because="entries, zero again after every launch"),
        tickets=Exact(because="the last block of a row puts both back to 0"),
    ),
    work=lambda s: work(s, BF16, 4 * s.T * (s.S + 1)),
    requires=(
        *REQUIRES,
        Require("H <= 64", because="heads and entries share a block's memory"),
        Require("min(S, N) <= 1024", because="twice as many entries are sorted in shared memory"),
    ),
    batch_invariant="T",
    portable=False,
)
