"""The drafter's bias: what the token before says about each token of the vocabulary."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    BF16,
    F32,
    F64,
    I32,
    Dim,
    Format,
    Geometry,
    In,
    InOut,
    Kernel,
    Require,
    Tile,
    Within,
    Work,
    kernel,
)

_WARPS = 8


def _constants(s: Shape) -> Mapping[str, int]:
    """How rows are dealt to warps; only the order within a row is a promise."""
    rows = min(s.T, 8)
    return dict(ROWS=rows, WARP_ROWS=8 if rows <= 2 else 4 if rows <= 4 else 2, BATCH=1)


def _geometry(s: Shape) -> Geometry:
    c = _constants(s)
    tiles = -(-s.V // (_WARPS * c["WARP_ROWS"]))
    return Geometry(grid=(-(-s.T // c["ROWS"]), tiles), block=32 * _WARPS)


def _bias(name: str, sum_format: Format) -> Kernel:
    return kernel(
        name=name,
        family="markov",
        summary=f"logits plus the products of the previous token's row, sums in {sum_format.name}",
        args=[
            In("w1", BF16, "V R", align=16),
            In("w2", BF16, "V R", align=16),
            In("ids", I32, "T"),
            InOut("logits", F32, "T V"),
            Dim("T"),
            Dim("V"),
            Dim("R"),
        ],
        requires=(Require("R % 8 == 0", because="a lane takes 8 consecutive elements of a row"),),
        constants=_constants,
        geometry=_geometry,
        writes=dict(logits=Tile(x=("T", 8))),
        contract=dict(
            logits=Within(
                "dot",
                # The bias is a float32 before it is added, whatever its sum was.
                depth="8*ceil(R/256) + 5 + 2" if sum_format is F32 else "2",
                terms="R + 1",
                because=f"a lane's fused additions in {sum_format.name} and a butterfly; then the"
                " bias is rounded to f32, and one addition joins it to the logit",
            )
        ),
        work=lambda s: Work(
            read=2 * s.V * s.R + 2 * s.T * s.R + 4 * s.T * s.V,
            write=4 * s.T * s.V,
            flops=2 * s.T * s.V * s.R,
        ),
        batch_invariant="T",
    )


markov_bias = _bias("markov_bias", F64)
markov_bias_f32 = _bias("markov_bias_f32", F32)
