"""Sink attention of a few rows in one launch, from the products of wq_b to the input of wo_a."""

from dsv4.axes import Shape
from dsv4.card import MULTIPROCESSORS
from dsv4.kernels.attention import CHUNK, INPUTS, LOGIT, REQUIRES, THREADS
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

# What was done to a query before its logits: the norm's roundings, as the kind `norm` derives them
# from its chain of ceil(K/128) + 7, then two products and a sum of the rotation. The magnitudes
# hold |a cos| + |b sin| where a rotated lane enters, so its error is relative to them.
_QUERY = "ceil((ceil(K/128) + 7)/2) + 8 + 2"
SHARE = 2  # heads that have tickets of their own, at least
TICKETS = 2  # counters of a row and its heads: summed, left
_STRIP = 32  # columns of a head that one warp joins
_CLUSTER = 16  # blocks of a list at most; what sm_90 and sm_100 take
_ROOM = 4 * (24 * (32 + 4 + 1))  # of a warp that joins 24 chunks: columns, factors, weights
_ROOMS = THREADS // 32 * _ROOM
_CHUNKED = f"T ceil(S/{CHUNK}) H"


def _partial(chain: str) -> Within:
    return Within(
        "dot",
        depth=f"{LOGIT} + {_QUERY} + 4 + {chain}",
        terms=f"K + {CHUNK}",
        because="a query's norm and rotation, a logit's chain, an exponential within 2 spacings,"
        " the chain of the sum",
    )


def _chunks(s: Shape) -> int:
    return -(-int(s.S) // CHUNK)


def _heads(s: Shape) -> int:
    """Heads of a block: a row that is loaded serves all of them, but every SM needs a block."""
    blocks = s.T * _chunks(s)
    return next((h for h in (2, 4) if blocks * -(-s.H // h) <= MULTIPROCESSORS), 8)


def _cluster(s: Shape) -> int:
    """Blocks that join the chunks of a list together: all of them, if a cluster takes so many."""
    chunks = _chunks(s)
    return chunks if 2 <= chunks <= _CLUSTER else 1


def _shared_bytes(s: Shape) -> int:
    """Queries and rows; sums of others take the queries' place, and may need some more."""
    heads, blocks = _heads(s), _cluster(s)
    sums = -(-heads * -(-s.K // _STRIP) // blocks) * blocks * _STRIP
    return int(max(4 * (max(heads * s.K, sums) + CHUNK * s.K), _ROOMS))


def _work(s: Shape) -> Work:
    # The chunks' sums stay in the L2 cache: they are no traffic that must be.
    rows = min(s.N, s.T * s.S)
    return Work(
        read=4 * (s.T * s.H * s.K + rows * s.K + s.T * s.S + s.H + s.T * s.R),
        write=2 * s.T * s.H * s.K,
        flops=4 * s.T * s.H * s.S * s.K,
    )


attention_decode = kernel(
    name="attention_decode",
    family="attention_decode",
    reads_early=(),
    starts_early=True,
    summary="head norm, rotation, sink attention, rotation back and bf16 in one launch",
    args=(
        *INPUTS,
        In("sink", F32, "H"),
        In("table", F32, "P R"),
        In("positions", I32, "T"),
        Out("o", BF16, "T H K", align=8),
        Out("power", F32, _CHUNKED),
        Out("total", F32, _CHUNKED),
        Out("value", F32, f"{_CHUNKED} K", align=16),
        InOut("ticket", I32, f"T ceil(H/{SHARE}) {TICKETS}"),
        Dim("H"),
        Dim("N"),
        Dim("S"),
        Dim("R"),
        Dim("P"),
        Stride("ids_stride", of="ids"),
        Scalar("scale", F32),
        Scalar("eps", F32),
    ),
    constants=lambda s: dict(
        DIM=s.K,
        CHUNK_ENTRIES=CHUNK,
        HEADS_OF_BLOCK=_heads(s),
        ROOM_BYTES=_ROOMS,
        CLUSTER=_cluster(s),
    ),
    geometry=lambda s: Geometry(
        (_chunks(s), -(-s.H // _heads(s)), s.T), THREADS, _shared_bytes(s), cluster=_cluster(s)
    ),
    contract=dict(
        o=Within(
            "softmax",
            depth=f"{LOGIT} + {_QUERY} + {CHUNK} + ceil(S/{CHUNK}) + 2",
            terms="K + S",
            because="attention_sink_f32 on a query that was normalised and rotated; two products"
            " and a sum of the rotation back; then bf16",
        ),
        power=_partial("0"),
        total=_partial("6"),
        value=_partial(f"{CHUNK}"),
        ticket=Exact(because="the last to leave a row's heads puts it back; a cluster takes none"),
    ),
    work=_work,
    requires=(
        *REQUIRES,
        Require("R % 2 == 0 and R <= K", "lanes rotate in pairs, and lie at the end of a head"),
        Require("eps > 0", "a head of zeros would divide by zero"),
    ),
    batch_invariant="T",
)
