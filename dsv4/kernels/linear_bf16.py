"""Products of one to eight rows with bf16 weights.

The order of the sum and the dealing of rows live here for both linear families: `linear_fp8` must
add in the same order to give the same bytes.
"""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.spec import (
    BF16,
    F32,
    I32,
    Dim,
    Geometry,
    In,
    Kernel,
    Out,
    Require,
    Scalar,
    Stride,
    Within,
    Work,
    kernel,
)


def parts(width: str) -> str:
    """Parts that groups of 128 elements are dealt to, a warp each, for the reduction's width.

    They depend on it alone, so that rows keep their bytes however many there are, of x or of w.
    """
    return f"min(16, ceil(({width})/128))"


def depth(width: str) -> str:
    """Roundings of a term, for the reduction's width.

    A product of the tensor core takes 16 terms and the sum before it. It aligns them to the
    largest, keeps 24 bits or more and cuts off the rest: each of the 16, and the sum twice on cards
    that take them by eights, loses less than 2^-23 of the largest, and so do two results; 20 losses
    of two roundings each. A group chains four products for every 64 elements it has; then a fused
    addition for every group of the part, and one for every other part.
    """
    chain = f"40*min(8, 4*ceil(({width})/64))"
    return f"{chain} + ceil(ceil(({width})/128)/{parts(width)}) + {parts(width)} - 1"


PARTS, DEPTH = parts("K"), depth("K")

REQUIRES = (
    Require("M <= 8", "a verify round holds at most 8 rows; they share the weights' one pass"),
    Require("K % 16 == 0", "a lane takes 16 consecutive elements of a row"),
)
GROUPED = (
    Require("N % group == 0", "every group has as many rows of w"),
    Require("group % 8 == 0", "a warp walks 8 rows of w that share their columns of x"),
)

# Warps that fill the 132 multiprocessors of an H200, or nearly, at 16 on each.
CARD_WARPS = 128 * 16

# A thread's weights on their way: 64 KiB for each multiprocessor.
_AHEAD_BYTES = 128

# Shared memory that any card gives a block.
_ROOM_BYTES = 99 * 1024


def constants(s: Shape, element: int = 2) -> Mapping[str, int]:
    """How groups of K and rows of w are dealt to warps and blocks, and what shared memory holds.

    element: bytes of one of the weights.
    """
    dealt, whole = int(evaluate(PARTS, s)), int(s.get("group", 32))
    for tiles in (4, 2, 1) if element == 1 else (2, 1):
        # Sixteen warps a block where rows suffice for all multiprocessors and there is room, else
        # eight.
        for warps in (16, 8):
            sets = max(1, warps // dealt)
            blocks = CARD_WARPS // max(8, dealt * sets)
            sets_of_rows = -(-s.N // (8 * tiles * sets))
            enough = sets_of_rows * 4 >= blocks * 3 and whole % (8 * tiles) == 0
            passes = -(-sets_of_rows // blocks)
            c = all_constants(s, dict(PARTS=dealt, SETS=sets, TILES=tiles), passes, element)
            fits = warps == 8 or dealt > 8 or c["PASSES"] == passes
            if enough and fits or tiles == 1 and warps == 8:
                return c
    raise AssertionError("one tile takes any rows")


def all_constants(
    s: Shape, deal: Mapping[str, int], passes: int, element: int, *, beside: int = 0
) -> Mapping[str, int]:
    """A deal with all other constants; fewer passes where their sums leave too little room.

    beside: bytes of a block's other uses of shared memory.
    """
    to_walk = passes * -(-s.K // (128 * deal["PARTS"]))
    ahead = _AHEAD_BYTES // (32 * deal["TILES"] * element)
    c = dict(ROWS=s.M, **deal, TAIL=int(s.K % 128 != 0), DEPTH=max(1, min(to_walk, ahead)))
    room = _ROOM_BYTES - beside - weights_bytes(c, element)
    return dict(c, PASSES=max(1, min(passes, room // sums_bytes({**c, "PASSES": 1}))))


def weights_bytes(c: Mapping[str, int], element: int) -> int:
    """Of the weights on their way."""
    return c["PARTS"] * c["SETS"] * c["DEPTH"] * c["TILES"] * 8 * 128 * element


def sums_bytes(c: Mapping[str, int]) -> int:
    """Of the sums of all parts."""
    return 4 * c["PASSES"] * c["SETS"] * c["PARTS"] * 8 * c["TILES"] * c["ROWS"]


def room_bytes(c: Mapping[str, int], element: int) -> int:
    """What a launch gives of shared memory."""
    return weights_bytes(c, element) + sums_bytes(c)


def geometry_of(c: Mapping[str, int], rows: int, element: int) -> Geometry:
    """One block for the passes that its warps make down `rows` rows of w."""
    block_rows = 8 * c["TILES"] * c["SETS"] * c["PASSES"]
    return Geometry(
        grid=-(-rows // block_rows),
        block=32 * c["PARTS"] * c["SETS"],
        shared_bytes=room_bytes(c, element),
    )


BECAUSE = (
    "exact products; tensor-core sums of a group, cut off at 24 bits; f32 sums of groups and parts"
)


def work(s: Shape) -> Work:
    """Bytes and operations, x read in full."""
    columns = s.K * (s.N // s.group if "group" in s else 1)
    return Work(
        read=2 * s.N * s.K + 2 * s.M * columns, write=4 * s.M * s.N, flops=2 * s.M * s.N * s.K
    )


def _declare(name: str, summary: str, *, grouped: bool) -> Kernel:
    return kernel(
        name=name,
        family="linear_bf16",
        reads_early=("w",),
        starts_early=True,
        summary=summary,
        args=[
            In("w", BF16, "N K", align=16),
            In("x", BF16, "M N*K/group" if grouped else "M K", strided=True, align=16),
            Out("y", F32, "M N", strided=True),
            Dim("N"),
            Dim("K"),
            *([Scalar("group", I32)] if grouped else []),
            Stride("x_stride", of="x"),
            Stride("y_stride", of="y"),
        ],
        requires=REQUIRES + (GROUPED if grouped else ()),
        constants=constants,
        geometry=lambda s: geometry_of(constants(s), s.N, 2),
        contract=dict(y=Within("dot", depth=DEPTH, terms="K", because=BECAUSE)),
        work=work,
        batch_invariant="M",
        portable=False,
    )


linear_bf16 = _declare("linear_bf16", "y = x w^T for 1 to 8 rows of x, bf16 weights", grouped=False)
linear_bf16_grouped = _declare(
    "linear_bf16_grouped",
    "y = x w^T, every `group` rows of w on their own columns of x, bf16 weights",
    grouped=True,
)
