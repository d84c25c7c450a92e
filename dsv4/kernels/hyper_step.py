"""Between two sub-blocks, before the first and behind the last: streams, coefficients and inputs.

Coefficients behind the input are left open, as scaled mixes: the launch after it balances them.
Each kernel does the work of several of `hyper`, `rms_norm`, `cast`, `act_quant` and `movement` with
their bytes; sums are float32.
"""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.spec import (
    BF16,
    E4M3,
    F32,
    I32,
    Arg,
    Contract,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Kernel,
    Out,
    Require,
    Scalar,
    Within,
    Work,
    kernel,
)

_MIXES = "(2+M)*M"
_NORM_THREADS = 512
_GROUP = 128
# Blocks of a row, at most; sixteen are what sm_90 and sm_100 take. More rows than six have half as
# many: an H200 does not find room for so many clusters of sixteen at once.
_CLUSTER, _HALF_CLUSTER, _MOST_ROWS = 16, 8, 6

_REQUIRES = (
    Require("M <= 8", because="a row's streams are unrolled"),
    Require("D % 8 == 0", because="a lane takes 8 consecutive elements of one stream"),
    Require("M*D <= 65536", because="a row has at most 256 parts of 256 elements"),
    Require("D <= 8192", because="a lane has at most 16 columns"),
    Require("eps > 0", because="a column of zeros would divide by zero"),
)

_DERIVED = "the oracle carries every rounding to the end by the exact derivative"
_TICKET = Exact(because="the last block of a row puts it back to 0")


def _counted(terms: str = "") -> Within:
    return Within("dot", terms=terms, because=_DERIVED)


def _constants(s: Shape) -> Mapping[str, int]:
    parts = int(-(-s.M * s.D // 256))
    most = _CLUSTER if s.T <= _MOST_ROWS else _HALF_CLUSTER
    return dict(
        STREAMS=s.M,
        PARTS=parts,
        PER_THREAD=-(-s.D // _NORM_THREADS),
        CLUSTER=max(size for size in (1, 2, 4, 8, 16) if size <= min(parts, most)),
        # Of 80 registers; more streams need up to 112.
        MOST_WARPS=25 if s.M <= 4 else 20,
    )


def _geometry(s: Shape, sums: int) -> Geometry:
    """A cluster a row. A warp has one of the sums, or several where there are too many."""
    c = _constants(s)
    warps = max(8, -(-sums // -(-sums // c["MOST_WARPS"])))
    room = max(_mail_bytes(c, sums, team) for team in (1, c["CLUSTER"]))
    return Geometry(s.T * c["CLUSTER"], 32 * warps, room, cluster=c["CLUSTER"])


def _mail_bytes(c: Mapping[str, int], sums: int, team: int) -> int:
    """Shared memory of a block that finishes a row with team - 1 others, or alone."""
    together = team == c["CLUSTER"]
    parts_each = -(-c["PARTS"] // c["CLUSTER"])
    letters = -(-parts_each // 4)
    warps = _NORM_THREADS // 32 // team
    columns = c["PER_THREAD"] * 32
    floats = (
        sums * (c["CLUSTER"] if together else 1) * 4 * letters
        + (warps if together else 1) * columns * c["STREAMS"]
        + -(-c["PER_THREAD"] * (_NORM_THREADS // _GROUP) // team) * _GROUP
        + _NORM_THREADS // 32
        + 256 * 4 * letters
        + warps * columns
    )
    return 16 + 4 * floats


def _weights(mixes: str, scales: str) -> list[Arg]:
    return [
        In("fn", F32, f"{mixes} M*D", align=16),
        In("scale", F32, scales),
        In("base", F32, mixes),
        In("gain", F32, "D"),
    ]


_STREAMS_IN = [
    In("z", F32, "T D", align=16),
    In("x", F32, "T M D", align=16),
    In("post", F32, "T M"),
    In("comb", F32, "T M M"),
]
_INPUTS = [
    Out("mix", F32, f"T {_MIXES}"),
    Out("y", F32, "T D", align=16),
    Out("wide", BF16, "T D", align=8),
    Out("codes", E4M3, "T D", align=4),
    Out("scales", F32, "T D/128"),
]
_PROMISES: Mapping[str, Contract] = dict(
    x_next=_counted("M + 1"),
    mix=_counted("M*D"),
    y=_counted("D"),
    wide=_counted("D"),
    codes=Within("requant", terms="D", because=_DERIVED + "; a scale that no rounding reaches"),
    scales=Exact(
        because="found by comparing bits of the largest magnitude, which is far from a tie"
    ),
    collapsed=_counted("M"),
    partial=_counted("256"),
    ticket=_TICKET,
)


def _work(s: Shape, rows: int, moved: str) -> Work:
    """Of a kernel with so many rows of fn. moved: bytes of activations in and out, per column."""
    read, write = (int(evaluate(part, s)) for part in moved.split(","))
    return Work(
        read=4 * s.D * (rows * s.M + 1) + s.T * s.D * read,
        write=s.T * s.D * write,
        flops=2 * s.T * s.M * s.D * (rows + s.M + 3),
    )


def _kernel(
    name: str,
    summary: str,
    args: list[Arg],
    mixes: str,
    *,
    moved: str,
    dims: str = "D",
) -> Kernel:
    every = [
        *args,
        Out("partial", F32, f"T {mixes}+1 ceil(M*D/256)"),
        InOut("ticket", I32, "T"),
        *(Dim(axis) for axis in dims.split()),
        *(Scalar(eps, F32) for eps in ("mix_eps", "eps", "norm_eps")),
    ]
    outputs = [a.name for a in every if a.role in ("out", "inout")]
    return kernel(
        name=name,
        family="hyper_step",
        reads_early=("fn", "scale", "base", "gain"),
        starts_early=True,
        summary=summary,
        args=every,
        requires=_REQUIRES,
        constants=_constants,
        geometry=lambda s: _geometry(s, int(evaluate(mixes, s)) + 1),
        contract={n: _PROMISES[n] for n in outputs},
        work=lambda s: _work(s, evaluate(mixes, s), moved),
        batch_invariant="T",
    )


hyper_step_open = _kernel(
    "hyper_step_open",
    "post, then the next scaled mixes, collapse, RMS norm, and the input in bf16 and FP8",
    [
        *_STREAMS_IN,
        *_weights(_MIXES, "3"),
        Out("x_next", F32, "T M D", align=16),
        *_INPUTS,
    ],
    _MIXES,
    moved="4*M + 4,4*M + 7",
)

hyper_step_streams = _kernel(
    "hyper_step_streams",
    "the same of streams that are there",
    [In("x", F32, "T M D", align=16), *_weights(_MIXES, "3"), *_INPUTS],
    _MIXES,
    moved="4*M,7",
)

hyper_step_entry = _kernel(
    "hyper_step_entry",
    "embeddings as every stream, and the first sub-block's scaled mixes and input",
    [
        In("table", BF16, "V D", align=8),
        In("tokens", I32, "T"),
        *_weights(_MIXES, "3"),
        Out("x_next", F32, "T M D", align=16),
        *_INPUTS,
    ],
    _MIXES,
    moved="2,4*M + 7",
    dims="V D",
)

hyper_step_exit = _kernel(
    "hyper_step_exit",
    "streams collapsed for a head, and their RMS norm",
    [
        In("x", F32, "T M D", align=16),
        *_weights("M", "1"),
        Out("collapsed", F32, "T D"),
        Out("y", F32, "T D"),
    ],
    "M",
    moved="4*M,8",
)
