"""Products of FP8 activations with FP4 weights: one matrix, chosen experts, halves of experts.

The order of the sum depends on K alone, so that all of them give the same bytes.
"""

from collections.abc import Callable, Mapping

from dsv4.axes import Shape, evaluate
from dsv4.spec import (
    E2M1X2,
    E4M3,
    F32,
    I32,
    UE8M0,
    Arg,
    Dim,
    Format,
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

Constants = Callable[[Shape], Mapping[str, int]]
Geometries = Callable[[Shape], Geometry]

# Chunks of 128 elements are dealt to this many parts, a warp each.
PARTS = "min(8, K/128)"
# Slots that a block takes one after the other.
SLOTS = 8
_PIECE_BYTES = 32 * 64  # of weights, that a warp asks for at once
# Blocks that keep the 132 multiprocessors of an H200 busy, one on each.
CARD_BLOCKS = 96


def depth_of(group: int) -> str:
    """Roundings on the longest way of a term.

    A product of the tensor core has 4 terms of a group, the rest is 0. It aligns them and the sum
    before to the largest, keeps 24 bits or more and cuts off the rest: each of the 4, and the sum
    twice on cards that take 16 by eights, loses less than 2^-23 of the largest, and so do two
    results; 8 losses of two roundings each. Then the activation's scale, a fused addition for every
    chunk of the part, three levels of columns, the other parts, and scale2.
    """
    chain = 16 * group // 4
    second = " + 1" if group == 16 else ""
    return f"{chain} + 1 + ceil(K/128/{PARTS}) + 3 + {PARTS} - 1{second}"


_BECAUSE = (
    "exact products; tensor-core sums of a group, cut off at 24 bits; f32 sums of groups and parts"
)


def _contract(group: int) -> Within:
    return Within("dot", depth=depth_of(group), terms="K", because=_BECAUSE)


def chosen(tiles: int, slots: int, x_rows: int, s: Shape, most_sets: int = 2) -> dict[str, int]:
    """How chunks of K, slots and rows of w are dealt to the warps of a block."""
    parts = int(evaluate(PARTS, s))
    sets = min(slots, 16 // parts, most_sets)
    return dict(
        K_CHUNKS=int(s.K) // 128,
        PARTS=parts,
        SETS=sets,
        TILES=tiles,
        SLOTS=slots,
        X_ROWS=x_rows,
        # 32 KiB of 8 or 16 warps on their way: steps of every size were slower with more.
        RING=1 if parts * sets > 8 else 2,
    )


def _bytes_of_scales(s: Shape, c: Mapping[str, int], group: int) -> int:
    """Scales of a walk's slots, in copies of 16 bytes, or of a chunk's; room for a row more."""
    row = int(s.K) // group
    copy = 16 if row % 16 == 0 else 128 // group
    return -(-c["SLOTS"] * row // copy * (8 * c["TILES"] + 1) * copy // 128) * 128


def shared_bytes(s: Shape, c: Mapping[str, int], group: int, wide: bool = False) -> int:
    """Weights on their way, scales of a walk, and rows of x as products take them.

    wide: whether a row of x waits there as bf16, too.
    """
    x = c["X_ROWS"] * (2 * s.K + s.K // 32) + (2 * s.K if wide else 0)
    ring = c["RING"] * _PIECE_BYTES * c["PARTS"] * c["SETS"]
    return ring + _bytes_of_scales(s, c, group) + int(x)


def _constants(slots: Callable[[Shape], int]) -> Constants:
    return lambda s: chosen(2, slots(s), 1, s)


def _geometry(
    columns: Callable[[Shape], int], constants: Constants, group: int, matrices: int = 1
) -> Geometries:
    def geometry(s: Shape) -> Geometry:
        c = constants(s)
        rows = 8 * c["TILES"] // matrices
        threads = 32 * c["PARTS"] * c["SETS"]
        return Geometry((columns(s), -(-s.N // rows)), threads, shared_bytes(s, c, group))

    return geometry


def weights_of(prefix: str, scale: Format, group: int, name: str = "") -> list[Arg]:
    """The arrays of one matrix, or of those of all experts."""
    weights = [
        In(f"{name}codes", E2M1X2, f"{prefix}N K/2", align=16),
        In(f"{name}scales", scale, f"{prefix}N K/{group}", align=128 // group),
    ]
    second = [In(f"{name}scale2", F32, prefix.strip() or "1")]
    return weights + (second if group == 16 else [])


def bytes_of_weights(s: Shape, group: int) -> int:
    """Bytes of the codes and scales of one matrix."""
    return int(s.N * s.K // 2 + s.N * s.K // group)


def _one(name: str, kind: str, scale: Format, group: int) -> Kernel:
    constants = _constants(lambda s: 1)
    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"y = x w^T for FP8 rows x and one {kind} matrix w",
        args=[
            *weights_of("", scale, group),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            Out("y", F32, "T N"),
            Dim("N"),
            Dim("K"),
        ],
        constants=constants,
        geometry=_geometry(lambda s: s.T, constants, group),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(y=_contract(group)),
        work=lambda s: Work(
            read=bytes_of_weights(s, group) + s.T * s.K + 4 * s.T * s.K // 128,
            write=4 * s.T * s.N,
            flops=2 * s.T * s.N * s.K,
        ),
        batch_invariant="T",
        portable=False,
    )


def _slots_of_block(s: Shape) -> int:
    return min(int(s.group), SLOTS)


def _columns_of_groups(s: Shape) -> int:
    return int(s.T) * -(-int(s.group) // _slots_of_block(s))


_SHARED_ROWS = Require("T*group == S", because="slot s has activation row s / group")


def _selected(name: str, kind: str, scale: Format, group: int) -> Kernel:
    constants = _constants(_slots_of_block)
    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"one row of a product a slot, each with the {kind} matrix of its expert",
        args=[
            *weights_of("E ", scale, group),
            In("ids", I32, "S"),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            Out("y", F32, "S N"),
            Dim("E"),
            Dim("N"),
            Dim("K"),
            Scalar("group", I32),
        ],
        requires=(_SHARED_ROWS,),
        constants=constants,
        geometry=_geometry(_columns_of_groups, constants, group),
        contract=dict(y=_contract(group)),
        work=lambda s: Work(
            read=min(s.S, s.E) * bytes_of_weights(s, group) + s.T * s.K + 4 * s.T * s.K // 128,
            write=4 * s.S * s.N,
            flops=2 * s.S * s.N * s.K,
        ),
        portable=False,
    )


def _gate_up(name: str, kind: str, scale: Format, group: int) -> Kernel:
    def constants(s: Shape) -> Mapping[str, int]:
        return chosen(4, _slots_of_block(s), 1, s)

    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"the first half of chosen {kind} experts: silu(gate) * up * routing weight",
        args=[
            *weights_of("E ", scale, group, "gate_"),
            *weights_of("E ", scale, group, "up_"),
            In("ids", I32, "S"),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            In("weights", F32, "S"),
            Out("y", F32, "S N"),
            Dim("E"),
            Dim("N"),
            Dim("K"),
            Scalar("group", I32),
            Scalar("limit", F32),
        ],
        requires=(_SHARED_ROWS,),
        constants=constants,
        geometry=_geometry(_columns_of_groups, constants, group, matrices=2),
        contract=dict(
            y=Within(
                "dot",
                # Seven spacings of swiglu_weighted are 14 roundings of the result.
                depth=f"{depth_of(group)} + 14",
                terms="K",
                because="both sums as in the selected product, through a map whose slopes are in"
                " the magnitude; then swiglu_weighted",
            )
        ),
        work=lambda s: Work(
            read=2 * min(s.S, s.E) * bytes_of_weights(s, group) + s.T * s.K + s.T * s.K // 32,
            write=4 * s.S * s.N,
            flops=4 * s.S * s.N * s.K,
        ),
        portable=False,
    )


def _down(name: str, kind: str, scale: Format, group: int) -> Kernel:
    constants = _constants_of_tokens
    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"the second half of chosen {kind} experts, summed in order, shared one last",
        args=[
            *weights_of("E ", scale, group),
            In("ids", I32, "T A"),
            In("x", E4M3, "T A K", align=16),
            In("x_scales", F32, "T A K/128"),
            In("order", I32, "T A"),
            In("shared", F32, "T N"),
            Out("y", F32, "T N"),
            Dim("E"),
            Dim("N"),
            Dim("K"),
        ],
        requires=(
            Require(f"A <= {SLOTS}", "a block takes the slots of a token one after the other"),
        ),
        constants=constants,
        geometry=_geometry(lambda s: s.T, constants, group),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(
            y=Within(
                "dot",
                depth=f"{depth_of(group)} + A + 1",
                terms="A*K",
                because=_BECAUSE + "; one addition for every expert and one for the shared one",
            )
        ),
        work=lambda s: Work(
            read=min(s.T * s.A, s.E) * bytes_of_weights(s, group)
            + s.T * s.A * (s.K + s.K // 32 + 8)
            + 4 * s.T * s.N,
            write=4 * s.T * s.N,
            flops=2 * s.T * s.A * s.N * s.K,
        ),
        batch_invariant="T",
        portable=False,
    )


def _constants_of_tokens(s: Shape) -> Mapping[str, int]:
    wide = s.A > 1 and s.T * -(-s.N // 32) >= CARD_BLOCKS
    return chosen(4 if wide else 2, s.A, s.A, s)


linear_fp4_mx = _one("linear_fp4_mx", "MXFP4", UE8M0, 32)
linear_fp4_nv = _one("linear_fp4_nv", "NVFP4", E4M3, 16)
linear_fp4_mx_selected = _selected("linear_fp4_mx_selected", "MXFP4", UE8M0, 32)
linear_fp4_nv_selected = _selected("linear_fp4_nv_selected", "NVFP4", E4M3, 16)
linear_fp4_mx_gate_up = _gate_up("linear_fp4_mx_gate_up", "MXFP4", UE8M0, 32)
linear_fp4_nv_gate_up = _gate_up("linear_fp4_nv_gate_up", "NVFP4", E4M3, 16)
linear_fp4_mx_down = _down("linear_fp4_mx_down", "MXFP4", UE8M0, 32)
linear_fp4_nv_down = _down("linear_fp4_nv_down", "NVFP4", E4M3, 16)
