"""A gate's products and the experts that they choose, in one launch; coefficients beside them."""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.kernels.island_dots import DEPTH, PART_STEPS, PARTS
from dsv4.spec import (
    BF16,
    F32,
    I32,
    I64,
    Arg,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Kernel,
    Option,
    Out,
    Require,
    Scalar,
    Within,
    Work,
    kernel,
)

_MIXES = "(2+M)*M"
_CLUSTER = 16  # blocks that have one token, at most; what sm_90 and sm_100 take

_REQUIRES = (
    Require("T <= 8", because="a block shares its weights among at most 8 rows of x"),
    Require("D % 8 == 0", because="a lane takes 8 consecutive elements of a row"),
    Require("A <= E", because="the experts of a token are distinct"),
    Require("A <= 32", because="one warp holds the slots of a token, one a lane"),
    Require("E <= 1024", because="a lane of the selecting warp keeps at most 32 experts"),
    Require("M <= 8", because="a row's streams are unrolled"),
    Require("eps > 0", because="a column of zeros would divide by zero"),
)
_COUNTED = Within(
    "dot", because="the oracle carries every rounding to the end by the exact derivative"
)
# In island_dots' words the gate has N = E rows of K = D columns.
_SUM_DEPTH = DEPTH.replace("N", "E").replace("K", "D")
_SCORE = Within(
    "dot",
    depth=f"{_SUM_DEPTH} + 2",
    terms="D",
    because="the gate's f32 sum through a map whose slope is in the magnitude, and one rounding",
)
_WEIGHTS = Within(
    "dot",
    depth=f"{_SUM_DEPTH} + A + 7",
    terms="D",
    because="scores as above in share and sum, A - 1 additions, a division and a product",
)


def _constants(s: Shape) -> Mapping[str, int]:
    dots = Shape(dict(N=s.E, K=s.D))
    parts = int(evaluate(PARTS, dots))
    # Of all widths tried with 160 and 256 experts this one was the fastest.
    rows, cluster = 4 if s.E >= 128 else 1, 0
    # A cluster of which a lane holds 8 weights of each of at most 16 rows.
    if s.T == 1 and s.E <= 256 and s.D <= 4096:
        cluster = max(size for size in (1, 2, 4, 8, _CLUSTER) if size <= -(-s.E // rows))
        rows = -(-s.E // cluster)
    return dict(
        STREAMS=s.M,
        ITERATIONS=s.iterations,
        ROWS=s.T,
        WARP_ROWS=rows,
        WARPS=min(16, parts),
        PART_STEPS=int(evaluate(PART_STEPS, dots)),
        PARTS=parts,
        BATCH=1,
        PER_LANE=-(-s.E // 32),
        CLUSTER=cluster,
    )


def _geometry(s: Shape) -> Geometry:
    c = _constants(s)
    if cluster := c["CLUSTER"]:
        return Geometry(grid=cluster, block=32 * (c["WARPS"] + 1), cluster=cluster)
    return Geometry(grid=1 + -(-s.E // c["WARP_ROWS"]), block=32 * c["WARPS"])


def _gate(name: str, summary: str, chooses: list[Arg], dims: str) -> Kernel:
    return kernel(
        name=name,
        family="router_gate",
        reads_early=("w", *(a.name for a in chooses if a.name == "bias")),
        starts_early=True,
        passes_on=True,
        summary=summary,
        args=[
            In("x", F32, "T D", align=16),
            In("w", BF16, "E D", align=16),
            *chooses,
            In("mix", F32, f"T {_MIXES}"),
            In("hyper_scale", F32, "3"),
            In("hyper_base", F32, _MIXES),
            Out("ids", I32, "T A"),
            Out("weights", F32, "T A"),
            Out("order", I32, "T A"),
            Out("post", F32, "T M"),
            Out("comb", F32, "T M M"),
            Out("scores", F32, "T E"),
            InOut("ticket", I32, "1"),
            *(Dim(axis) for axis in dims.split()),
            Scalar("scale", F32),
            Scalar("eps", F32),
        ],
        options=(Option("iterations", (20, 1, 2, 5)),),
        requires=_REQUIRES,
        constants=_constants,
        geometry=_geometry,
        contract=dict(
            ids=Exact(because="as in router, of sums that are exact or far enough apart"),
            weights=_WEIGHTS,
            order=Exact(because="a permutation that the ids decide"),
            post=Within("dot", terms="4", because=_COUNTED.because),
            comb=_COUNTED,
            scores=_SCORE,
            ticket=Exact(because="the last block puts it back to 0"),
        ),
        work=lambda s: Work(
            read=2 * s.E * s.D + 4 * s.T * s.D,
            write=12 * s.T * s.A + 4 * s.T * s.E,
            flops=2 * s.T * s.E * (s.D + 30),
        ),
        batch_invariant="T",
    )


router_gate = _gate(
    "router_gate",
    "a gate's products and the experts with the largest biased scores",
    [In("bias", F32, "E")],
    "E A D",
)

router_gate_hash = _gate(
    "router_gate_hash",
    "a gate's products and the experts that a table names, weighed by their scores",
    [In("table", I64, "V A"), In("tokens", I32, "T")],
    "E A D V",
)
