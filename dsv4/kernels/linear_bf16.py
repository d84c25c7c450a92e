"""Products of one to eight rows with bf16 weights.

The order of the sum and the dealing of rows live here for both linear families: `linear_fp8` must
add in the same order to give the same bytes.
"""

from collections.abc import Mapping, Sequence

from dsv4.axes import Shape, evaluate
from dsv4.card import whole_waves
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

# Shared memory of 16 warps: any card has it, and on Hopper the next kernel finds as much.
_ROOM_BYTES = 99 * 1024
_ENOUGH_BYTES = 96  # on their way for each thread: 48 KiB for each multiprocessor
_MOST_DEPTH = 6
_STATIC_BYTES = 44 * 1024  # of sums that wait for other passes


def constants(s: Shape, element: int = 2) -> Mapping[str, int]:
    """How groups of K and rows of w are dealt to warps and blocks, and what shared memory holds.

    element: bytes of one of the weights.
    """
    dealt, whole = int(evaluate(PARTS, s)), int(s.get("group", 32))
    found = []
    for tiles in (2, 4, 1) if element == 1 else (2, 1):
        # Sixteen warps a block where rows suffice for all multiprocessors, else eight.
        for warps in (16, 8):
            sets = max(1, warps // dealt)
            blocks = CARD_WARPS // max(8, dealt * sets)
            passes = max(1, -(-s.N // (8 * tiles * sets * blocks)))
            enough = -(-s.N // (8 * tiles * sets)) * 4 >= blocks * 3
            if enough and whole % (8 * tiles) == 0 or tiles == 1 and warps == 8:
                found.append(dict(PARTS=dealt, SETS=sets, TILES=tiles, PASSES=passes))
                break
    return roomiest(s, found, element)


def roomiest(
    s: Shape,
    dealt: Sequence[Mapping[str, int]],
    element: int,
    *,
    beside: int = 0,
    least_rows: int = 1,
) -> Mapping[str, int]:
    """The first of these deals that has enough weights on their way, or the one with most.

    Passes are halved where their sums leave too little room. beside: bytes of a block's other uses
    of shared memory. least_rows: that a block must have.
    """
    found: list[tuple[int, dict[str, int]]] = []
    for halvings in range(12):
        for share in (16, 1):  # of the room: what 16 warps leave to a block, then all of it
            for deal in dealt:
                least = -(-least_rows // (8 * deal["TILES"] * deal["SETS"]))
                c = {**deal, "PASSES": max(least, deal["PASSES"] >> halvings)}
                warps = c["PARTS"] * c["SETS"]
                room = min(_ROOM_BYTES, _ROOM_BYTES * warps // share) - beside
                full = [with_room(s, c, element, staged=x, room=room) for x in (1, 0)]
                best = max((f for f in full if f), key=lambda f: f["DEPTH"], default=None)
                if best is None:
                    continue
                ahead = best["DEPTH"] * best["TILES"] * 16 * element
                if ahead >= min(_ENOUGH_BYTES, _walk_bytes(s, best, element)):
                    return best
                found.append((ahead, best))
    return max(found, key=lambda pair: pair[0])[1]


def with_room(
    s: Shape, deal: Mapping[str, int], element: int, *, staged: int, room: int, depth: int = 0
) -> dict[str, int] | None:
    """A deal with all other constants, as deep as `room` allows; None where nothing fits.

    depth: that one instead.
    """
    chunks = _chunks(s, deal)
    one_group = deal["PASSES"] * 8 * deal["TILES"] * deal["SETS"]
    if staged and int(s.get("group", one_group)) % one_group:
        return None
    warps = deal["PARTS"] * deal["SETS"]
    sums = sums_bytes({**deal, "ROWS": s.M})
    if sums > _STATIC_BYTES and deal["PASSES"] > 1:
        return None
    # Four tiles leave no registers for a walk over several passes.
    late = int(deal["TILES"] == 4)
    if late and deal["PASSES"] > 1:
        return None
    fixed = (0 if late else sums) + (warps * chunks * 128 * s.M if staged else 0)
    slot = warps * (512 * deal["TILES"] * element + (0 if staged else 128 * s.M))
    depth = depth or min(_MOST_DEPTH, chunks * deal["PASSES"], (room - fixed) // slot)
    if depth < 1 or (late and fixed + depth * slot < sums):
        return None
    return dict(
        ROWS=s.M, **deal, DEPTH=depth, X_CHUNKS=chunks if staged else 0, LATE=late,
        TAIL=int(s.K % 128 != 0),
    )  # fmt: skip


def _walk_bytes(s: Shape, c: Mapping[str, int], element: int) -> int:
    """What a thread has to read in all."""
    return _chunks(s, c) * c["PASSES"] * c["TILES"] * 16 * element


def _chunks(s: Shape, c: Mapping[str, int]) -> int:
    """Chunks of 64 of the longest part."""
    groups = -(-int(s.K) // 128)
    return 2 * -(-groups // c["PARTS"])


def sums_bytes(c: Mapping[str, int]) -> int:
    """Of the sums of all parts."""
    return 4 * c["PASSES"] * c["SETS"] * c["PARTS"] * 8 * c["TILES"] * c["ROWS"]


def room_bytes(c: Mapping[str, int], element: int) -> int:
    """What a launch gives of shared memory: weights on their way, and x."""
    warps = c["PARTS"] * c["SETS"]
    x = (c["X_CHUNKS"] or c["DEPTH"]) * 128 * c["ROWS"]
    return warps * (c["DEPTH"] * 512 * c["TILES"] * element + x)


def geometry_of(c: Mapping[str, int], rows: int, element: int) -> Geometry:
    """One block for the passes that its warps make down `rows` rows of w."""
    block_rows = 8 * c["TILES"] * c["SETS"] * c["PASSES"]
    return Geometry(
        grid=whole_waves(-(-rows // block_rows)),
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
