"""The head: logits of the whole vocabulary, or the greedy token in the same pass."""

from collections.abc import Callable, Mapping

from dsv4.axes import Shape
from dsv4.card import MULTIPROCESSORS
from dsv4.spec import (
    BF16,
    F32,
    F64,
    I32,
    I64,
    Dim,
    Exact,
    Format,
    Geometry,
    In,
    InOut,
    Kernel,
    Out,
    Require,
    Tile,
    Within,
    Work,
    kernel,
)

_WARPS = 8

# 8 fused additions a step and lane, then the butterfly.
_DEPTH = "8*ceil(D/256) + 5"

_WHOLE_VECTORS = Require("D % 8 == 0", because="a lane takes 8 consecutive elements of a row")
_INPUTS = (In("x", F32, "T D", align=16), In("w", BF16, "V D", align=16))
_SIZES = (Dim("T"), Dim("V"), Dim("D"))


def _constants(sum_format: Format) -> Callable[[Shape], Mapping[str, int]]:
    """How rows are dealt to warps; a sum in double takes two registers."""

    def constants(s: Shape) -> Mapping[str, int]:
        rows = min(s.T, 8)
        batch = 2 if 2 < rows <= 4 else 4
        return dict(
            ROWS=rows,
            WARP_ROWS=4 if sum_format is F32 else 2,
            BATCH=batch,
            WHOLE=int(s.D % (256 * batch) == 0),
        )

    return constants


def _geometry(sum_format: Format, *, spans: bool) -> Callable[[Shape], Geometry]:
    """A block for every few rows of the vocabulary, or as many as fit the card at once."""

    def geometry(s: Shape) -> Geometry:
        c = _constants(sum_format)(s)
        across = -(-s.T // c["ROWS"])
        down = -(-s.V // (_WARPS * c["WARP_ROWS"]))
        if spans:
            fit = MULTIPROCESSORS * (2 if c["ROWS"] <= 4 else 1)
            down = min(down, max(1, fit // across))
        return Geometry(grid=(across, down), block=32 * _WARPS)

    return geometry


def _dot(sum_format: Format) -> Within:
    return Within(
        "dot",
        depth=_DEPTH,
        terms="D",
        accumulator=sum_format,
        because=f"exact products fused into {sum_format.name} sums of a lane, then a butterfly;"
        " the store rounds to f32",
    )


def _logits(name: str, sum_format: Format) -> Kernel:
    return kernel(
        name=name,
        family="lm_head",
        summary=f"logits of every token of the vocabulary, sums in {sum_format.name}",
        args=[*_INPUTS, Out("y", F32, "T V"), *_SIZES],
        requires=(_WHOLE_VECTORS,),
        constants=_constants(sum_format),
        geometry=_geometry(sum_format, spans=False),
        writes=dict(y=Tile(x=("T", 8), y=("V", _WARPS * (4 if sum_format is F32 else 2)))),
        contract=dict(y=_dot(sum_format)),
        work=lambda s: Work(
            read=2 * s.V * s.D + 4 * s.T * s.D,
            write=4 * s.T * s.V,
            flops=2 * s.T * s.V * s.D,
        ),
        batch_invariant="T",
    )


lm_head = _logits("lm_head", F64)
lm_head_f32 = _logits("lm_head_f32", F32)

lm_head_argmax = kernel(
    name="lm_head_argmax",
    family="lm_head",
    summary="the greedy token of every row and its logit, without writing the others",
    args=[
        *_INPUTS,
        InOut("keys", I64, "T"),
        InOut("ticket", I32, "1"),
        Out("ids", I32, "T"),
        Out("logit", F32, "T"),
        *_SIZES,
    ],
    requires=(_WHOLE_VECTORS,),
    constants=_constants(F32),
    geometry=_geometry(F32, spans=True),
    contract=dict(
        keys=Exact(because="integers, zero again after every launch"),
        ticket=Exact(because="a counter, zero again after every launch"),
        ids=Exact(because="an index; ties go to the lowest, NaN loses to any number"),
        logit=_dot(F32),
    ),
    work=lambda s: Work(
        read=2 * s.V * s.D + 4 * s.T * s.D, write=8 * s.T, flops=2 * s.T * s.V * s.D
    ),
    batch_invariant="T",
)
