"""Hyper-connections: M residual streams, mixed into each sub-block and back out."""

from collections.abc import Callable, Mapping
from typing import Any

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    F64,
    I32,
    I64,
    Arg,
    Dim,
    Exact,
    Format,
    Geometry,
    In,
    InOut,
    Kernel,
    Option,
    Out,
    Require,
    Scalar,
    Tile,
    Ulp,
    Within,
    Work,
    kernel,
)

_MIXES = "(2+M)*M"
_THREADS, _NORM_THREADS = 256, 512

_STREAMS = Require("M <= 8", because="a row's streams are unrolled")
_EPS = Require("eps > 0", because="a column of zeros would divide by zero")
_LANES = (
    Require("D % 8 == 0", because="a lane takes 8 consecutive elements of one stream"),
    Require("M*D <= 65536", because="a row has at most 256 parts of 256 elements"),
)
_ITERATIONS = Option("iterations", (20, 1, 2, 5))

# A lane's 8 fused terms, a butterfly, a lane's parts, a butterfly.
_CHAIN = "8 + 5 + ceil(ceil(M*D/256)/32) + 4"

_COUNTED = Within(
    "dot", because="the oracle carries every rounding to the end by the exact derivative"
)


def _counted(terms: str) -> Within:
    return Within("dot", terms=terms, because=_COUNTED.because)


def _constants(**needs: Callable[[Shape], int]) -> Callable[[Shape], Mapping[str, int]]:
    """Build constants: those a kernel needs, 1 for the rest, which its source file has too."""

    def constants(s: Shape) -> Mapping[str, int]:
        rest = dict(ITERATIONS=1, WIDTH=1, PARTS=1, PER_THREAD=1)
        return {**rest, "STREAMS": s.M, **{name: of(s) for name, of in needs.items()}}

    return constants


def _parts(s: Shape) -> int:
    return int(-(-s.M * s.D // 256))


def _width(s: Shape) -> int:
    return 4 if s.D % 4 == 0 else 1


def _columns(s: Shape) -> Geometry:
    return Geometry(grid=(s.T, -(-s.D // (_THREADS * _width(s)))), block=_THREADS)


def _streamed(name: str, summary: str, args: list[Arg], **more: Any) -> Kernel:
    return kernel(
        name=name,
        family="hyper",
        summary=summary,
        args=args,
        constants=_constants(WIDTH=_width),
        geometry=_columns,
        batch_invariant="T",
        **more,
    )


def _norm_scale(name: str, sums: str, contract: Ulp | Within) -> Kernel:
    return kernel(
        name=name,
        family="hyper",
        summary=f"mixes over the root mean square of all lanes of a token; {sums} sums",
        args=[
            In("x", F32, "T M D", align=16),
            InOut("mix", F32, "T C"),
            Dim("C"),
            Dim("D"),
            Scalar("mix_eps", F32),
        ],
        requires=(
            _STREAMS,
            *_LANES,
            Require("mix_eps > 0", because="it keeps zeros finite"),
        ),
        constants=_constants(PARTS=_parts),
        geometry=lambda s: Geometry(grid=s.T, block=32 * min(8, _parts(s))),
        contract=dict(mix=contract),
        work=lambda s: Work(
            read=4 * s.T * (s.M * s.D + s.C), write=4 * s.T * s.C, flops=2 * s.T * s.M * s.D
        ),
        batch_invariant="T",
    )


hyper_norm_scale = _norm_scale(
    "hyper_norm_scale",
    "f64",
    Ulp(0.5001, because="everything in f64, one rounding at the store"),
)
hyper_norm_scale_f32 = _norm_scale(
    "hyper_norm_scale_f32",
    "f32",
    Within(
        "norm", depth=_CHAIN, because="f32 sum of positive squares, then the roundings of a norm"
    ),
)

hyper_split = kernel(
    name="hyper_split",
    family="hyper",
    summary="scaled mixes to pre, post and the balanced comb",
    args=[
        In("mix", F32, f"T {_MIXES}"),
        In("scale", F32, "3"),
        In("base", F32, _MIXES),
        Out("pre", F32, "T M"),
        Out("post", F32, "T M"),
        Out("comb", F32, "T M M"),
        Dim("T"),
        Scalar("eps", F32),
    ],
    options=(_ITERATIONS,),
    requires=(_STREAMS, _EPS),
    constants=_constants(ITERATIONS=lambda s: s.iterations),
    geometry=lambda s: Geometry(grid=-(-s.T // (4 * (32 // s.M))), block=128),
    contract=dict(pre=_COUNTED, post=_counted("4"), comb=_COUNTED),
    work=lambda s: Work(
        read=4 * (s.T + 1) * (2 + s.M) * s.M,
        write=4 * s.T * (2 + s.M) * s.M,
        flops=4 * s.T * s.M * s.M * s.iterations,
    ),
    batch_invariant="T",
)

hyper_head_gate = kernel(
    name="hyper_head_gate",
    family="hyper",
    summary="scaled mixes to the weights that collapse the streams before a head",
    args=[
        In("mix", F32, "T M"),
        In("scale", F32, "1"),
        In("base", F32, "M"),
        Out("pre", F32, "T M"),
        Dim("T", I64),
        Scalar("eps", F32),
    ],
    requires=(_STREAMS,),
    constants=_constants(),
    geometry=lambda s: Geometry(grid=-(-s.T * s.M // _THREADS), block=_THREADS),
    contract=dict(pre=_counted("4")),
    work=lambda s: Work(read=4 * (s.T + 1) * s.M, write=4 * s.T * s.M, flops=20 * s.T * s.M),
    batch_invariant="T",
)

hyper_collapse = _streamed(
    "hyper_collapse",
    "the streams of a token, summed under its weights",
    [
        In("x", F32, "T M D", align=16),
        In("pre", F32, "T M"),
        Out("y", F32, "T D", align=16),
        Dim("D"),
    ],
    requires=(_STREAMS,),
    contract=dict(y=Within("dot", depth="M", because="one fused term a stream")),
    work=lambda s: Work(
        read=4 * s.T * s.M * (s.D + 1), write=4 * s.T * s.D, flops=2 * s.T * s.M * s.D
    ),
    writes=dict(y=Tile(x=("T", 1), y=("D", 1024))),
)

hyper_post = _streamed(
    "hyper_post",
    "a sub-block's output and the old streams, mixed into the new ones",
    [
        In("z", F32, "T D", align=16),
        In("x", F32, "T M D", align=16),
        In("post", F32, "T M"),
        In("comb", F32, "T M M"),
        Out("out", F32, "T M D", align=16),
        Dim("D"),
    ],
    requires=(_STREAMS,),
    contract=dict(out=Within("dot", depth="M + 1", because="a product, a fused term a stream")),
    work=lambda s: Work(
        read=4 * s.T * (s.D + s.M * s.D + s.M + s.M * s.M),
        write=4 * s.T * s.M * s.D,
        flops=2 * s.T * s.M * (s.M + 1) * s.D,
    ),
    writes=dict(out=Tile(x=("T", 1), y=("D", 1024))),
)


def _pre(name: str, sums: str) -> Kernel:
    return kernel(
        name=name,
        family="hyper",
        summary=f"norm_scale, split and collapse in one launch; {sums} sums",
        args=[
            In("x", F32, "T M D", align=16),
            In("mix", F32, f"T {_MIXES}"),
            In("scale", F32, "3"),
            In("base", F32, _MIXES),
            Out("pre", F32, "T M"),
            Out("post", F32, "T M"),
            Out("comb", F32, "T M M"),
            Out("y", F32, "T D", align=16),
            Dim("D"),
            Scalar("mix_eps", F32),
            Scalar("eps", F32),
        ],
        options=(_ITERATIONS,),
        requires=(_STREAMS, _EPS, *_LANES),
        constants=_constants(ITERATIONS=lambda s: s.iterations, PARTS=_parts),
        geometry=lambda s: Geometry(grid=s.T, block=_NORM_THREADS),
        contract=dict(pre=_COUNTED, post=_counted("4"), comb=_COUNTED, y=_counted("M")),
        work=lambda s: Work(
            read=4 * s.T * (s.M * s.D + (2 + s.M) * s.M),
            write=4 * s.T * (s.D + (2 + s.M) * s.M),
            flops=4 * s.T * s.M * s.D,
        ),
        batch_invariant="T",
    )


hyper_pre = _pre("hyper_pre", "f64")
hyper_pre_f32 = _pre("hyper_pre_f32", "f32")


def _post_pre_norm(name: str, sums: Format) -> Kernel:
    return kernel(
        name=name,
        family="hyper",
        summary=f"post, then the next mixes, split, collapse and RMS norm; {sums.name} sums",
        args=[
            In("z", F32, "T D"),
            In("x", F32, "T M D"),
            In("post", F32, "T M"),
            In("comb", F32, "T M M"),
            In("fn", F32, f"{_MIXES} M*D", align=16),
            In("scale", F32, "3"),
            In("base", F32, _MIXES),
            In("gain", F32, "D"),
            Out("x_next", F32, "T M D"),
            Out("pre", F32, "T M"),
            Out("post_next", F32, "T M"),
            Out("comb_next", F32, "T M M"),
            Out("y", F32, "T D"),
            Out("partial", sums, f"T {_MIXES}+1 ceil(M*D/256)"),
            InOut("ticket", I32, "T"),
            Dim("D"),
            Scalar("mix_eps", F32),
            Scalar("eps", F32),
            Scalar("norm_eps", F32),
        ],
        options=(_ITERATIONS,),
        requires=(
            _STREAMS,
            _EPS,
            *_LANES,
            Require("D <= 8192", because="a thread of the last block keeps at most 16 columns"),
        ),
        constants=_constants(
            ITERATIONS=lambda s: s.iterations,
            PARTS=_parts,
            PER_THREAD=lambda s: -(-s.D // _NORM_THREADS),
        ),
        geometry=lambda s: Geometry(grid=s.T * _parts(s), block=_NORM_THREADS + 32),
        contract=dict(
            x_next=_counted("M + 1"),
            pre=_COUNTED,
            post_next=_counted("4"),
            comb_next=_COUNTED,
            y=_counted("D"),
            partial=_counted("256"),
            ticket=Exact(because="the last block of a row puts it back to 0"),
        ),
        work=lambda s: Work(
            read=4 * ((2 + s.M) * s.M * s.M * s.D + s.D) + 4 * s.T * (s.M + 1) * s.D,
            write=4 * s.T * (s.M + 1) * s.D,
            flops=2 * s.T * s.M * s.D * ((2 + s.M) * s.M + s.M + 3),
        ),
        batch_invariant="T",
    )


hyper_post_pre_norm = _post_pre_norm("hyper_post_pre_norm", F64)
hyper_post_pre_norm_f32 = _post_pre_norm("hyper_post_pre_norm_f32", F32)
