"""What follows the products of a layer's front: norms, rotation, quantisers, cached rows."""

from collections.abc import Callable, Mapping

from dsv4.axes import Shape
from dsv4.kernels.compressor import parts_of
from dsv4.spec import (
    BF16,
    F32,
    I32,
    Arg,
    Dim,
    Geometry,
    In,
    InOut,
    Kernel,
    Option,
    Out,
    Require,
    Scalar,
    Tile,
    Within,
    Work,
    kernel,
)

_THREADS = 512
_OVERLAP = {"blocks": 0, "indexed": 1}
_TASKS = {"window": 2, "blocks": 3, "indexed": 4}

_KEYS = Within(
    "dot",
    because="the oracle carries every rounding to the end, through the quantiser as well",
)
_LATENT = Within(
    "norm",
    depth=f"ceil(Q/{_THREADS}) + 9",
    because="f32 sum of positive squares: lanes, two butterflies; then the roundings of a norm",
)


def _constants(kind: str) -> Callable[[Shape], Mapping[str, int]]:
    def constants(s: Shape) -> Mapping[str, int]:
        parts = parts_of(s.C, _OVERLAP[kind]) if kind in _OVERLAP else 1
        return dict(
            KIND=list(_TASKS).index(kind),
            LATENT=s.Q,
            WIDTH=s.K,
            INDEX_WIDTH=s.I if kind == "indexed" else 32,
            MAIN_PARTS=parts,
            INDEX_PARTS=parts,
            CLAMP_ONLY=s.clamp_only,
        )

    return constants


def _work(kind: str) -> Callable[[Shape], Work]:
    def work(s: Shape) -> Work:
        read, write = 4 * (s.T + 1) * (s.Q + s.K), 2 * s.T * s.Q + 4 * s.T * s.K
        if kind in _OVERLAP:
            # About one row of C ends a block, and one at least if rows are few.
            blocks = -(-s.T // s.C)
            index = s.I if kind == "indexed" else 0
            width = (1 + _OVERLAP[kind]) * (s.K + index)
            read += 4 * width * (2 * (blocks + _OVERLAP[kind]) + 1) * s.C
            write += blocks * (4 * s.K + 2 * index)
        return Work(read=read, write=write, flops=8 * s.T * (s.Q + s.K))

    return work


def _compressor(prefix: str, names: tuple[str, str], width: str, overlap: int) -> list[Arg]:
    columns = f"2*{width}" if overlap else width
    return [
        *(In(f"{prefix}{name}", F32, f"S {columns}") for name in names),
        In(f"{prefix}ape", F32, f"C {columns}"),
        In(f"{prefix}gain", F32, width),
    ]


def _finish(kind: str, summary: str) -> Kernel:
    inputs, outputs, sizes, requires = [], [], [], []
    if kind in _OVERLAP:
        overlap = _OVERLAP[kind]
        inputs += _compressor("", ("raw_kv", "raw_score"), "K", overlap)
        inputs += [In("firsts", I32, "T"), In("index_rows", I32, "T")]
        sizes += [Dim("C"), Dim("S")]
        requires.append(
            Require(f"S >= {1 + overlap}*C", because="a block and the one before must fit the ring")
        )
    if kind == "indexed":
        inputs += _compressor("index_", ("kv", "score"), "I", 1)
        outputs.append(InOut("keys", BF16, "B I"))
        sizes.append(Dim("B"))
        requires += [
            Require("I >= 32 and 1024 % I == 0", because="a warp transforms whole powers of two"),
            Require("R <= I", because="lanes rotate at the end of a key"),
        ]
    return kernel(
        name=f"finish_{kind}",
        family="finish",
        reads_early=("q_gain", "kv_gain", *(a.name for a in inputs if a.name.endswith("gain"))),
        starts_early=True,
        summary=summary,
        args=[
            In("latent", F32, "T Q"),
            In("q_gain", F32, "Q"),
            In("kv", F32, "T K"),
            In("kv_gain", F32, "K"),
            In("table", F32, "P R"),
            In("positions", I32, "T"),
            In("ring_rows", I32, "T"),
            *inputs,
            Out("compact", BF16, "T Q"),
            InOut("kvc", F32, "N K"),
            *outputs,
            Dim("N"),
            Dim("R"),
            Dim("P"),
            *sizes,
            Scalar("ring", I32),
            *([Scalar("scale", F32)] if kind == "indexed" else []),
            Scalar("eps", F32),
        ],
        options=(Option("clamp_only", (0, 1)),),
        requires=(
            Require("eps > 0", because="a row of zeros would divide by zero"),
            Require("R % 2 == 0 and R < K", because="lanes rotate in pairs, at the end of a row"),
            Require("(K - R) % 64 == 0", because="a group of 64 lanes has one scale and is whole"),
            Require("0 < ring and ring <= N", because="rows of tokens lie before those of blocks"),
            *requires,
        ),
        constants=_constants(kind),
        geometry=lambda s: Geometry(grid=(s.T, _TASKS[kind]), block=_THREADS),
        writes=dict(compact=Tile(x=("T", 1))),
        contract={"compact": _LATENT, "kvc": _KEYS, **({"keys": _KEYS} if outputs else {})},
        work=_work(kind),
    )


finish_window = _finish(
    "window", "latent and keys of a layer's rows normalised, keys in their ring"
)
finish_blocks = _finish("blocks", "the same, and the blocks that the rows end")
finish_indexed = _finish("indexed", "the same, and the indexer's keys of these blocks")
