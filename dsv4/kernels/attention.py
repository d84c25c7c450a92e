"""Attention over listed rows, key and value at once, with a sink in the denominator."""

from collections.abc import Callable

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    F64,
    I32,
    Arg,
    Dim,
    Format,
    Geometry,
    In,
    Out,
    Require,
    Scalar,
    Stride,
    Tile,
    Within,
    Work,
    kernel,
)

HEADS = 8  # of one block
CHUNK = 40  # present entries summed together

_THREADS = 320
_LOGIT = "4*ceil(K/128) + 6"  # a lane's products, the fold of 32 lanes, the scale
_REQUIRES = (
    Require("K % 4 == 0", because="rows are loaded 16 bytes at a time"),
    Require("K <= 512", because="40 rows and 8 queries must fit the shared memory of a block"),
)
_INPUTS = (
    In("q", F32, "T H K", align=16),
    In("kv", F32, "N K", align=16),
    In("ids", I32, "T S", strided=True),
)


def _chunks(s: Shape) -> int:
    return -(-int(s.S) // CHUNK)


def _shared_bytes(s: Shape) -> int:
    return 4 * (HEADS + CHUNK) * int(s.K)


def _work(s: Shape) -> Work:
    # Rows and queries once; a list may name every row, but never more rows than there are.
    rows = min(s.N, s.T * s.S)
    return Work(
        read=4 * (s.T * s.H * s.K + rows * s.K + s.T * s.S + s.H),
        write=4 * s.T * s.H * s.K,
        flops=4 * s.T * s.H * s.S * s.K,
    )


def _split_work(size_bytes: int) -> Callable[[Shape], Work]:
    def work(s: Shape) -> Work:
        whole = _work(s)
        written = size_bytes * s.T * _chunks(s) * s.H * (s.K + 2)
        return Work(read=whole.read - 4 * s.H, write=written, flops=whole.flops)

    return work


def _join_work(size_bytes: int) -> Callable[[Shape], Work]:
    def work(s: Shape) -> Work:
        sums = s.T * s.B * s.H
        return Work(
            read=size_bytes * sums * (s.K + 2) + 4 * s.H,
            write=4 * s.T * s.H * s.K,
            flops=2 * sums * s.K,
        )

    return work


def _softmax(accumulator: Format) -> Within:
    return Within(
        "softmax",
        depth=f"{_LOGIT} + {CHUNK} + ceil(S/{CHUNK})",
        terms="K + S",
        accumulator=accumulator,
        because="a logit's chain, a chunk's chain of values, one addition per chunk; scaling by"
        " powers of two is exact",
    )


def _partial(accumulator: Format, chain: str) -> Within:
    return Within(
        "dot",
        depth=f"{_LOGIT} + 4 + {chain}",
        terms=f"K + {CHUNK}",
        accumulator=accumulator,
        because="a logit's chain, an exponential within 2 spacings, the chain of the sum",
    )


def _join(accumulator: Format) -> Within:
    return Within(
        "dot",
        depth="2*B + 8",
        terms="2*B",
        accumulator=accumulator,
        because="one addition per chunk in numerator and denominator, the sink's exponential within"
        " 2 spacings, its addition, the division",
    )


def _whole_arguments() -> tuple[Arg, ...]:
    return (
        *_INPUTS,
        In("sink", F32, "H"),
        Out("o", F32, "T H K", align=8),
        Dim("H"),
        Dim("N"),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("scale", F32),
    )


def _split_arguments(fmt: Format) -> tuple[Arg, ...]:
    return (
        *_INPUTS,
        Out("power", fmt, f"T ceil(S/{CHUNK}) H"),
        Out("total", fmt, f"T ceil(S/{CHUNK}) H"),
        Out("value", fmt, f"T ceil(S/{CHUNK}) H K"),
        Dim("H"),
        Dim("N"),
        Dim("S"),
        Stride("ids_stride", of="ids"),
        Scalar("scale", F32),
    )


def _join_arguments(fmt: Format) -> tuple[Arg, ...]:
    return (
        In("power", fmt, "T B H"),
        In("total", fmt, "T B H"),
        In("value", fmt, "T B H K"),
        In("sink", F32, "H"),
        Out("o", F32, "T H K", align=16),
        Dim("B"),
        Dim("H"),
    )


def _whole_geometry(s: Shape) -> Geometry:
    return Geometry((s.T, -(-s.H // HEADS)), _THREADS, _shared_bytes(s))


def _split_geometry(s: Shape) -> Geometry:
    return Geometry((_chunks(s), -(-s.H // HEADS), s.T), _THREADS, _shared_bytes(s))


def _join_geometry(s: Shape) -> Geometry:
    return Geometry((s.T, s.H), 128)


_SPLIT_WRITES = {
    name: Tile(x=(f"ceil(S/{CHUNK})", 1), y=("H", HEADS), z=("T", 1))
    for name in ("power", "total", "value")
}

attention_sink = kernel(
    name="attention_sink",
    family="attention",
    summary="sink softmax over listed rows, in f64",
    args=_whole_arguments(),
    constants=lambda s: dict(DIM=s.K),
    geometry=_whole_geometry,
    writes=dict(o=Tile(x=("T", 1), y=("H", HEADS))),
    contract=dict(o=_softmax(F64)),
    work=_work,
    requires=_REQUIRES,
    batch_invariant="T",
)

attention_sink_f32 = kernel(
    name="attention_sink_f32",
    family="attention",
    summary="sink softmax over listed rows, in f32",
    args=_whole_arguments(),
    constants=lambda s: dict(DIM=s.K),
    geometry=_whole_geometry,
    writes=dict(o=Tile(x=("T", 1), y=("H", HEADS))),
    contract=dict(o=_softmax(F32)),
    work=_work,
    requires=_REQUIRES,
    batch_invariant="T",
)

attention_sink_split = kernel(
    name="attention_sink_split",
    family="attention",
    summary="the sums of attention_sink, chunk by chunk of each list",
    args=_split_arguments(F64),
    constants=lambda s: dict(DIM=s.K),
    geometry=_split_geometry,
    writes=_SPLIT_WRITES,
    contract=dict(
        power=_partial(F64, "0"), total=_partial(F64, "6"), value=_partial(F64, f"{CHUNK}")
    ),
    work=_split_work(8),
    requires=_REQUIRES,
    batch_invariant="T",
)

attention_sink_split_f32 = kernel(
    name="attention_sink_split_f32",
    family="attention",
    summary="the sums of attention_sink_f32, chunk by chunk of each list",
    args=_split_arguments(F32),
    constants=lambda s: dict(DIM=s.K),
    geometry=_split_geometry,
    writes=_SPLIT_WRITES,
    contract=dict(
        power=_partial(F32, "0"), total=_partial(F32, "6"), value=_partial(F32, f"{CHUNK}")
    ),
    work=_split_work(4),
    requires=_REQUIRES,
    batch_invariant="T",
)

attention_sink_join = kernel(
    name="attention_sink_join",
    family="attention",
    summary="the chunks of attention_sink_split together: the bytes of attention_sink",
    args=_join_arguments(F64),
    constants=lambda s: dict(DIM=s.K),
    geometry=_join_geometry,
    writes=dict(o=Tile(x=("T", 1), y=("H", 1))),
    contract=dict(o=_join(F64)),
    work=_join_work(8),
    requires=_REQUIRES,
    batch_invariant="T",
)

attention_sink_join_f32 = kernel(
    name="attention_sink_join_f32",
    family="attention",
    summary="the chunks of attention_sink_split_f32 together: the bytes of attention_sink_f32",
    args=_join_arguments(F32),
    constants=lambda s: dict(DIM=s.K),
    geometry=_join_geometry,
    writes=dict(o=Tile(x=("T", 1), y=("H", 1))),
    contract=dict(o=_join(F32)),
    work=_join_work(4),
    requires=_REQUIRES,
    batch_invariant="T",
)
