"""Products that stay in float32 on both sides: stream mixes, router, compressors, heads."""

from collections.abc import Callable, Mapping

from dsv4.axes import Shape, evaluate
from dsv4.spec import (
    BF16,
    F32,
    F64,
    Dim,
    Format,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Tile,
    Within,
    Work,
    kernel,
)


def part_steps(rows: str, width: str) -> str:
    """Steps of 256 elements that form one part of the sum, for axis expressions of a weight.

    A weight of few rows gives every step to another warp, a tall one gives a warp the whole row;
    both come to about 4096 warps. It must not depend on the rows of x.
    """
    steps = f"ceil(({width})/256)"
    return f"max(ceil({steps}/256), (({rows}) > 128)*min({steps}, ({rows})*{steps}//4096))"


def parts(rows: str, width: str) -> str:
    """Parts of the sum, for axis expressions of a weight."""
    return f"ceil(ceil(({width})/256)/{part_steps(rows, width)})"


def depth(rows: str, width: str) -> str:
    """Roundings of a term: 8 fused additions a step and lane, the butterfly, then the parts, a
    lane's share and a butterfly.
    """
    several = f"({parts(rows, width)} > 1)*(ceil({parts(rows, width)}/32) + 4)"
    return f"8*{part_steps(rows, width)} + 5 + {several}"


PART_STEPS, PARTS, DEPTH = part_steps("N", "K"), parts("N", "K"), depth("N", "K")

_WHOLE_VECTORS = Require("K % 8 == 0", because="a lane takes 8 consecutive elements of a row")


def _constants(sum_format: Format, weight: Format) -> Callable[[Shape], Mapping[str, int]]:
    """How rows of x, rows of w and parts of K are dealt to warps; only the order is a promise."""

    def constants(s: Shape) -> Mapping[str, int]:
        steps, count = int(evaluate(PART_STEPS, s)), int(evaluate(PARTS, s))
        # A warp that walks several rows of w converts x once for all of them; sums in double and
        # weights in f32 cost twice the registers.
        tall = (s.N >= 256) + 2 * (s.N >= 1024)
        warp_rows = 1 + tall if sum_format is F32 and weight is BF16 else 1 + (s.N >= 256)
        # Many rows of x need many registers, so fewer warps then; few rows want the parts spread.
        group_warps = min(count, 8 if s.T > 2 else 16 if s.N > 128 else 32)
        groups = max(1, 8 // group_warps)
        return dict(
            ROWS=min(s.T, 8),
            PART_STEPS=steps,
            PARTS=count,
            WARP_ROWS=warp_rows,
            WARPS=groups * group_warps,
            GROUPS=groups,
            BATCH=min(steps, 2 if weight is F32 else 4),
        )

    return constants


def _island(name: str, weight: Format, sum_format: Format) -> Kernel:
    constants = _constants(sum_format, weight)

    def geometry(s: Shape) -> Geometry:
        c = constants(s)
        tiles = -(-s.N // (c["GROUPS"] * c["WARP_ROWS"]))
        return Geometry(grid=(-(-s.T // c["ROWS"]), tiles), block=32 * c["WARPS"])

    return kernel(
        name=name,
        family="island_dots",
        summary=f"y = x w^T with float32 inputs, {weight.name} weights, sums in {sum_format.name}",
        args=[
            In("x", F32, "T K", align=16),
            In("w", weight, "N K", align=16),
            Out("y", F32, "T N"),
            Dim("T"),
            Dim("N"),
            Dim("K"),
        ],
        requires=(_WHOLE_VECTORS,),
        constants=constants,
        geometry=geometry,
        writes=dict(y=Tile(x=("T", 8))),
        contract=dict(
            y=Within(
                "dot",
                depth=DEPTH,
                terms="K",
                accumulator=sum_format,
                because=f"exact products fused into {sum_format.name} sums: a lane's share of a"
                " part, butterfly, parts; the store rounds to f32",
            )
        ),
        work=lambda s: Work(
            read=weight.size_bytes * s.N * s.K + 4 * s.T * s.K,
            write=4 * s.T * s.N,
            flops=2 * s.T * s.N * s.K,
        ),
        batch_invariant="T",
    )


island_dots = _island("island_dots", F32, F64)
island_dots_f32 = _island("island_dots_f32", F32, F32)
island_dots_bf16 = _island("island_dots_bf16", BF16, F64)
island_dots_bf16_f32 = _island("island_dots_bf16_f32", BF16, F32)
