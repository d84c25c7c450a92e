"""Attention over listed rows, key and value at once, with a sink in the denominator."""

from collections.abc import Callable

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    F64,
    I32,
    Dim,
    Format,
    Geometry,
    In,
    Kernel,
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
CHUNK = 40  # present entries summed together; its builds and the engine take it from here

THREADS = CHUNK // 4 * 32  # a warp for four entries
LOGIT = "4*ceil(K/128) + 6"  # a lane's products, the fold of 32 lanes, the scale
REQUIRES = (
    Require("K % 4 == 0", because="rows are loaded 16 bytes at a time"),
    Require(
        "K <= 512",
        because=f"{CHUNK} rows and {HEADS} queries must fit the shared memory of a block",
    ),
)
INPUTS = (
    In("q", F32, "T H K", align=16),
    In("kv", F32, "N K", align=16),
    In("ids", I32, "T S", strided=True),
)
_LISTED = (Dim("H"), Dim("N"), Dim("S"), Stride("ids_stride", of="ids"), Scalar("scale", F32))


def _chunks(s: Shape) -> int:
    return -(-int(s.S) // CHUNK)


def shared_bytes(s: Shape) -> int:
    """Dynamic shared memory of a block that holds a chunk and its heads."""
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
        depth=f"{LOGIT} + {CHUNK} + ceil(S/{CHUNK})",
        terms="K + S",
        accumulator=accumulator,
        because="a logit's chain, a chunk's chain of values, one addition per chunk; scaling by"
        " powers of two is exact",
    )


def _partial(accumulator: Format, chain: str) -> Within:
    return Within(
        "dot",
        depth=f"{LOGIT} + 4 + {chain}",
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


def _constants(s: Shape) -> dict[str, int]:
    return dict(DIM=s.K, CHUNK_ENTRIES=CHUNK)


def _whole(name: str, sums: Format) -> Kernel:
    """The whole list in one block, summed in that format."""
    return kernel(
        name=name,
        family="attention",
        summary=f"sink softmax over listed rows, in {sums.name}",
        args=(
            *INPUTS,
            In("sink", F32, "H"),
            Out("o", F32, "T H K", align=8),
            *_LISTED,
        ),
        constants=_constants,
        geometry=lambda s: Geometry((s.T, -(-s.H // HEADS)), THREADS, shared_bytes(s)),
        writes=dict(o=Tile(x=("T", 1), y=("H", HEADS))),
        contract=dict(o=_softmax(sums)),
        work=_work,
        requires=REQUIRES,
        batch_invariant="T",
    )


def _split(name: str, sums: Format, whole: Kernel) -> Kernel:
    """One chunk of the list a block."""
    tile = Tile(x=(f"ceil(S/{CHUNK})", 1), y=("H", HEADS), z=("T", 1))
    return kernel(
        name=name,
        family="attention",
        summary=f"the sums of {whole.spec.name}, chunk by chunk of each list",
        args=(
            *INPUTS,
            Out("power", sums, f"T ceil(S/{CHUNK}) H"),
            Out("total", sums, f"T ceil(S/{CHUNK}) H"),
            Out("value", sums, f"T ceil(S/{CHUNK}) H K"),
            *_LISTED,
        ),
        constants=_constants,
        geometry=lambda s: Geometry((_chunks(s), -(-s.H // HEADS), s.T), THREADS, shared_bytes(s)),
        writes=dict(power=tile, total=tile, value=tile),
        contract=dict(
            power=_partial(sums, "0"), total=_partial(sums, "6"), value=_partial(sums, f"{CHUNK}")
        ),
        work=_split_work(sums.size_bytes),
        requires=REQUIRES,
        batch_invariant="T",
    )


def _joined(name: str, sums: Format, split: Kernel, whole: Kernel) -> Kernel:
    """The chunks of a list together."""
    return kernel(
        name=name,
        family="attention",
        summary=f"the chunks of {split.spec.name} together: the bytes of {whole.spec.name}",
        args=(
            In("power", sums, "T B H"),
            In("total", sums, "T B H"),
            In("value", sums, "T B H K"),
            In("sink", F32, "H"),
            Out("o", F32, "T H K", align=16),
            Dim("B"),
            Dim("H"),
        ),
        constants=_constants,
        geometry=lambda s: Geometry((s.T, s.H), 128),
        writes=dict(o=Tile(x=("T", 1), y=("H", 1))),
        contract=dict(o=_join(sums)),
        work=_join_work(sums.size_bytes),
        requires=REQUIRES,
        batch_invariant="T",
    )


attention_sink = _whole("attention_sink", F64)
attention_sink_f32 = _whole("attention_sink_f32", F32)
attention_sink_split = _split("attention_sink_split", F64, attention_sink)
attention_sink_split_f32 = _split("attention_sink_split_f32", F32, attention_sink_f32)
attention_sink_join = _joined("attention_sink_join", F64, attention_sink_split, attention_sink)
attention_sink_join_f32 = _joined(
    "attention_sink_join_f32", F32, attention_sink_split_f32, attention_sink_f32
)
