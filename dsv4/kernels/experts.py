"""The halves of the experts of a few tokens: chosen ones and the shared one in one launch each.

They give the bytes of the kernels whose work they do: `linear_fp4`, `linear_fp8`, `swiglu`,
`act_quant` and `cast`.
"""

from collections.abc import Mapping

from dsv4.axes import Shape, evaluate
from dsv4.kernels.linear_bf16 import DEPTH as DENSE_DEPTH
from dsv4.kernels.linear_bf16 import PARTS as DENSE_PARTS
from dsv4.kernels.linear_fp4 import (
    CARD_BLOCKS,
    SLOTS,
    bytes_of_weights,
    chosen,
    depth_of,
    shared_bytes,
    weights_of,
)
from dsv4.spec import (
    BF16,
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

_TOKENS = Require("T <= 8", because="a product of the tensor core has eight columns, one a token")
_ACTIVE = Require("A <= 32", because="the sums of a token's slots wait in shared memory")
_ROUTED = "routed sums as in linear_fp4, the shared expert's as in linear_fp8"


def _shared_expert(name: str = "") -> list[Arg]:
    return [
        In(f"shared_{name}codes", E4M3, "N K", align=16),
        In(f"shared_{name}scales", F32, "ceil(N/128) K/128"),
    ]


def _constants(s: Shape, tiles: int, x_rows: int, tokens: int) -> dict[str, int]:
    slots = min(int(s.A), SLOTS)
    walks = -(-int(s.A) // slots)
    # The blocks of one token fill a multiprocessor each; those of more run in pairs, so that one's
    # beginning and end hide behind the other.
    made = chosen(tiles, slots, x_rows, s, most_sets=2 if s.T == 1 else 1)
    return made | dict(
        TOKENS=tokens,
        SLOT_GROUPS=walks,
        DENSE_PARTS=int(evaluate(DENSE_PARTS, s)),
    )


def _geometry(s: Shape, c: Mapping[str, int], rows: int, group: int) -> Geometry:
    blocks = -(-s.N // rows)
    grid = (s.T, blocks)
    return Geometry(
        grid, 32 * c["PARTS"] * c["SETS"], shared_bytes(s, c, group, wide=c["TOKENS"] == 1)
    )


def _first_constants(s: Shape) -> Mapping[str, int]:
    # Half of a block's rows are the gate's.
    tiles = 4 if -(-s.N // 16) >= CARD_BLOCKS else 2
    return _constants(s, tiles, 1, int(s.T))


def _first_geometry(s: Shape, group: int) -> Geometry:
    c = _first_constants(s)
    return _geometry(s, c, 4 * c["TILES"], group)


def _gate_up(name: str, kind: str, scale: Format, group: int) -> Kernel:
    return kernel(
        name=name,
        family="experts",
        reads_early=(
            "shared_gate_codes",
            "shared_gate_scales",
            "shared_up_codes",
            "shared_up_scales",
        ),
        # A gate chooses from the same rows meanwhile.
        reads_passed=("x", "x_scales", "wide_x"),
        starts_early=True,
        summary=f"silu(gate) * up of {kind} experts with their weights, and of the shared expert",
        args=[
            *weights_of("E ", scale, group, "gate_"),
            *weights_of("E ", scale, group, "up_"),
            *_shared_expert("gate_"),
            *_shared_expert("up_"),
            In("ids", I32, "T A"),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            In("wide_x", BF16, "T K", align=16),
            In("weights", F32, "T A"),
            Out("y", F32, "T A N"),
            Out("shared_y", BF16, "T N"),
            Dim("E"),
            Dim("A"),
            Dim("N"),
            Dim("K"),
            Scalar("limit", F32),
        ],
        requires=(_TOKENS, _ACTIVE),
        constants=_first_constants,
        geometry=lambda s: _first_geometry(s, group),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(
            # Seven spacings of swiglu_weighted are 14 roundings of the result.
            y=Within(
                "dot",
                depth=f"{depth_of(group)} + 14",
                terms="K",
                because=_ROUTED + "; then swiglu_weighted, whose slopes are in the magnitude",
            ),
            shared_y=Within(
                "dot",
                depth=f"{DENSE_DEPTH} + 14",
                terms="K",
                because=_ROUTED + "; then swiglu, and one rounding to bf16",
            ),
        ),
        work=lambda s: Work(
            read=2 * min(s.T * s.A, s.E) * bytes_of_weights(s, group)
            + 2 * s.N * s.K
            + s.T * (3 * s.K + s.K // 32),
            write=4 * s.T * s.A * s.N + 2 * s.T * s.N,
            flops=4 * s.T * (s.A + 1) * s.N * s.K,
        ),
        batch_invariant="T",
        portable=False,
    )


def _second_constants(s: Shape) -> Mapping[str, int]:
    tiles = 4 if -(-s.N // 32) >= CARD_BLOCKS else 2
    return _constants(s, tiles, min(int(s.A), SLOTS), 1)


def _second_geometry(s: Shape, group: int) -> Geometry:
    c = _second_constants(s)
    return _geometry(s, c, 8 * c["TILES"], group)


def _down(name: str, kind: str, scale: Format, group: int) -> Kernel:
    return kernel(
        name=name,
        family="experts",
        reads_early=("shared_codes", "shared_scales"),
        starts_early=True,
        summary=f"the second half of {kind} experts, summed in order, and of the shared expert",
        args=[
            *weights_of("E ", scale, group),
            *_shared_expert(),
            In("ids", I32, "T A"),
            In("hidden", F32, "T A K", align=16),
            In("shared_x", BF16, "T K", align=16),
            In("order", I32, "T A"),
            Out("y", F32, "T N"),
            Dim("E"),
            Dim("A"),
            Dim("N"),
            Dim("K"),
        ],
        requires=(_ACTIVE,),
        constants=_second_constants,
        geometry=lambda s: _second_geometry(s, group),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(
            y=Within(
                "dot",
                depth=f"max({depth_of(group)} + A, {DENSE_DEPTH}) + 1",
                terms="(A + 1)*K",
                because=_ROUTED + "; an addition for every expert and one for the shared one",
            )
        ),
        work=lambda s: Work(
            read=min(s.T * s.A, s.E) * bytes_of_weights(s, group)
            + s.N * s.K
            + s.T * (s.A * (4 * s.K + 8) + 2 * s.K),
            write=4 * s.T * s.N,
            flops=2 * s.T * (s.A + 1) * s.N * s.K,
        ),
        batch_invariant="T",
        portable=False,
    )


experts_mx_gate_up = _gate_up("experts_mx_gate_up", "MXFP4", UE8M0, 32)
experts_nv_gate_up = _gate_up("experts_nv_gate_up", "NVFP4", E4M3, 16)
experts_mx_down = _down("experts_mx_down", "MXFP4", UE8M0, 32)
experts_nv_down = _down("experts_nv_down", "NVFP4", E4M3, 16)
