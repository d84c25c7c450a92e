"""Contents of made checkpoints, from a tensor's key and an element's index."""

from dsv4.axes import Shape
from dsv4.spec import (
    BF16,
    E2M1X2,
    E4M3,
    F32,
    I32,
    I64,
    UE8M0,
    Arg,
    Contract,
    Dim,
    Exact,
    Format,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Scalar,
    Stride,
    Tile,
    Work,
    kernel,
)

_INTEGERS = Exact(because="integers, and codes that hold them")
_ROUNDED = Exact(because="the content is defined with its roundings, product and sum apart")
_START = Scalar("start", I64)
_SCALE = (Scalar("base", I32), Scalar("threshold", I32))
_LINE = (Scalar("mean", F32), Scalar("scale", F32))
_NATURAL = Require("start >= 0", because="an index in the tensor counts from 0")
_BYTE = Require("base >= 2 and base <= 252", because="every scale must be a byte below 0xFF")
_SHARE = Require("threshold >= 0 and threshold <= 16384", because="it is a share of 2^14")


def _fill(
    name: str,
    summary: str,
    fmt: Format,
    per_thread: int,
    contract: Contract,
    scalars: tuple[Arg, ...] = (),
    requires: tuple[Require, ...] = (),
) -> Kernel:
    """The declaration of a kernel that fills y[E, N], `per_thread` elements from one block."""

    def work(s: Shape) -> Work:
        return Work(read=8 * s.E, write=fmt.size_bytes * s.E * s.N)

    whole = Require(f"start % {per_thread} == 0", because="a thread makes one block's elements")
    return kernel(
        name=name,
        family="mint",
        summary=summary,
        args=[
            In("keys", I64, "E"),
            Out("y", fmt, "E N", strided=True),
            Dim("N", I64),
            Stride("y_stride", of="y"),
            _START,
            *scalars,
        ],
        geometry=lambda s: Geometry(grid=(-(-s.N // (256 * per_thread)), s.E), block=256),
        writes=dict(y=Tile(x=("N", 256 * per_thread), y=("E", 1), per_thread=per_thread)),
        contract=dict(y=contract),
        work=work,
        requires=(_NATURAL, whole, *requires),
        batch_invariant="E",
    )


mint_e2m1x2 = _fill("mint_e2m1x2", "uniform FP4 codes, two a byte", E2M1X2, 16, _INTEGERS)
mint_e4m3 = _fill("mint_e4m3", "nearly normal E4M3 codes of rms 147", E4M3, 4, _INTEGERS)
mint_ue8m0 = _fill(
    "mint_ue8m0", "scale bytes around a base", UE8M0, 8, _INTEGERS, _SCALE, (_BYTE, _SHARE)
)
mint_e4m3_scales = _fill(
    "mint_e4m3_scales",
    "the same scales for half groups, over a second scale",
    E4M3,
    16,
    _INTEGERS,
    (*_SCALE, Scalar("second", I32)),
    (
        _BYTE,
        _SHARE,
        Require("base + 5 >= second and base <= second + 6", because="E4M3 holds 2^-6 to 2^8"),
    ),
)
mint_bf16 = _fill("mint_bf16", "nearly normal bf16", BF16, 2, _ROUNDED, _LINE)
mint_f32 = _fill("mint_f32", "nearly normal f32", F32, 2, _ROUNDED, _LINE)

mint_expert_ids = kernel(
    name="mint_expert_ids",
    family="mint",
    summary="rows of distinct expert ids",
    args=[
        Out("y", I64, "V A"),
        Dim("V"),
        Dim("A"),
        Scalar("key", I64),
        _START,
        Scalar("experts", I32),
    ],
    geometry=lambda s: Geometry(grid=-(-s.V // 256), block=256),
    writes=dict(y=Tile(x=("V", 256))),
    contract=dict(y=_INTEGERS),
    work=lambda s: Work(read=0, write=8 * s.V * s.A),
    requires=(_NATURAL, Require("A <= experts", because="the ids of a row are distinct")),
)
