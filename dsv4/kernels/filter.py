"""Filters of logit rows and draws from what they leave."""

from collections.abc import Sequence

from dsv4.spec import (
    F32,
    I32,
    I64,
    Arg,
    Dim,
    Exact,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Scalar,
    Tile,
    Within,
    Work,
    kernel,
)

_POSITIVE = Require("temp > 0", "a temperature of zero divides by zero; take the argmax instead")
_ROW = In("x", F32, "T V")
_STATS = (In("mx", F32, "T"), In("th", F32, "T"), In("z", F32, "T"))
_DRAW = (Scalar("temp", F32), Scalar("seed", I64), Scalar("event", I64))
_TOKEN = Exact(because="an index; scores and sums in f64 decide it, far from their roundings")

filter_stats = kernel(
    name="filter_stats",
    family="filter",
    summary="largest logit, least kept exponential, and kept mass of every row",
    args=[
        _ROW,
        Out("mx", F32, "T"),
        Out("th", F32, "T"),
        Out("z", F32, "T"),
        Dim("V"),
        Scalar("temp", F32),
        Scalar("top_k", I32),
        Scalar("top_p", F32),
        Scalar("min_p", F32),
    ],
    requires=(
        _POSITIVE,
        Require("top_k >= 0 and top_p > 0", "filters keep at least one token"),
    ),
    geometry=lambda s: Geometry(grid=s.T, block=512),
    writes=dict(mx=Tile(x=("T", 1)), th=Tile(x=("T", 1)), z=Tile(x=("T", 1))),
    contract=dict(
        mx=Exact(because="a maximum is one of its elements, copied"),
        th=Within(
            "dot",
            depth="6",
            because="a step of the bisection is 2^-24; an exponential is off by three such units",
        ),
        z=Within("dot", depth="8", because="an f64 sum of exponentials within 8 units of roundoff"),
    ),
    work=lambda s: Work(read=4 * s.T * s.V, write=12 * s.T, flops=27 * 20 * s.T * s.V),
    batch_invariant="T",
)

filter_gather = kernel(
    name="filter_gather",
    family="filter",
    summary="the filtered probability of one token of every row",
    args=[
        _ROW,
        *_STATS,
        In("ids", I32, "T"),
        Out("p", F32, "T"),
        Dim("T"),
        Dim("V"),
        Scalar("temp", F32),
    ],
    requires=(_POSITIVE,),
    geometry=lambda s: Geometry(grid=-(-s.T // 32), block=32),
    writes=dict(p=Tile(x=("T", 32))),
    contract=dict(
        p=Within("dot", depth="8", because="argument, exponential and quotient of one element")
    ),
    work=lambda s: Work(read=20 * s.T, write=4 * s.T, flops=20 * s.T),
    batch_invariant="T",
)


def _draw(
    name: str, summary: str, more: Sequence[Arg] = (), sizes: Sequence[Arg] = (), q_bytes: int = 0
) -> Kernel:
    return kernel(
        name=name,
        family="filter",
        summary=summary,
        args=[_ROW, *_STATS, *more, Out("ids", I32, "T"), Dim("V"), *sizes, *_DRAW],
        requires=(_POSITIVE,),
        geometry=lambda s: Geometry(grid=s.T, block=512),
        writes=dict(ids=Tile(x=("T", 1))),
        contract=dict(ids=_TOKEN),
        work=lambda s: Work(
            read=(4 + q_bytes) * s.T * s.V + 12 * s.T, write=4 * s.T, flops=60 * s.T * s.V
        ),
    )


filter_gumbel = _draw("filter_gumbel", "a draw from every filtered row, by the Gumbel maximum")
filter_residual_dense = _draw(
    "filter_residual_dense",
    "a draw from what one filtered row has more of than another",
    (
        In("q", F32, "T V"),
        In("q_mx", F32, "T"),
        In("q_th", F32, "T"),
        In("q_z", F32, "T"),
    ),
    q_bytes=4,
)
filter_residual_sparse = _draw(
    "filter_residual_sparse",
    "a draw from what a filtered row has more of than a few given probabilities",
    (In("candidates", I32, "T K"), In("q", F32, "T K")),
    (Dim("K"),),
)
