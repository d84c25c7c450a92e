"""Products of FP8 activations with FP4 weights: one matrix, or the experts that ids select."""

from collections.abc import Callable, Mapping

from dsv4.axes import Shape
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

_WARPS = 4


def _contract(group: int) -> Within:
    """A group's chain, then one fused addition a group of a lane, the butterfly, and scale2."""
    groups = f"{32 // group}*ceil(K/1024)"
    return Within(
        "dot",
        depth=f"{group} + {groups} + 5" + (" + 1" if group == 16 else ""),
        terms="K",
        because="products and scales are exact; f32 sums of a group, a lane's groups, butterfly"
        + ("; scale2 rounds once" if group == 16 else ""),
    )


def _constants(rows: Callable[[Shape], int]) -> Callable[[Shape], Mapping[str, int]]:
    """How rows are shared out; several rows of w a warp decode x once for all of them."""

    def constants(s: Shape) -> Mapping[str, int]:
        return dict(ROWS=rows(s), WARP_ROWS=4 if s.N >= 1024 else 2, BATCH=min(2, -(-s.K // 1024)))

    return constants


def _geometry(
    columns: Callable[[Shape], int], constants: Callable[[Shape], Mapping[str, int]]
) -> Callable[[Shape], Geometry]:
    def geometry(s: Shape) -> Geometry:
        tiles = -(-s.N // (_WARPS * constants(s)["WARP_ROWS"]))
        return Geometry(grid=(columns(s), tiles), block=32 * _WARPS)

    return geometry


def _weights(prefix: str, scale: Format, group: int) -> list[Arg]:
    weights = [
        In("codes", E2M1X2, f"{prefix}N K/2", align=16),
        In("scales", scale, f"{prefix}N K/{group}", align=2),
    ]
    return weights + ([In("scale2", F32, prefix.strip() or "1")] if group == 16 else [])


def _bytes_of_weights(s: Shape, group: int) -> int:
    return int(s.N * s.K // 2 + s.N * s.K // group)


def _one(name: str, kind: str, scale: Format, group: int) -> Kernel:
    constants = _constants(lambda s: min(s.T, 8))
    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"y = x w^T for FP8 rows x and one {kind} matrix w",
        args=[
            *_weights("", scale, group),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            Out("y", F32, "T N"),
            Dim("T"),
            Dim("N"),
            Dim("K"),
        ],
        constants=constants,
        geometry=_geometry(lambda s: -(-s.T // min(s.T, 8)), constants),
        writes=dict(y=Tile(x=("T", 8))),
        contract=dict(y=_contract(group)),
        work=lambda s: Work(
            read=_bytes_of_weights(s, group) + s.T * s.K + 4 * s.T * s.K // 128,
            write=4 * s.T * s.N,
            flops=2 * s.T * s.N * s.K,
        ),
        batch_invariant="T",
    )


def _selected(name: str, kind: str, scale: Format, group: int) -> Kernel:
    constants = _constants(lambda s: 1)
    return kernel(
        name=name,
        family="linear_fp4",
        summary=f"one row of a product a slot, each with the {kind} matrix of its expert",
        args=[
            *_weights("E ", scale, group),
            In("ids", I32, "S"),
            In("x", E4M3, "T K", align=16),
            In("x_scales", F32, "T K/128"),
            Out("y", F32, "S N"),
            Dim("E"),
            Dim("N"),
            Dim("K"),
            Scalar("group", I32),
        ],
        requires=(Require("T*group == S", because="slot s has activation row s / group"),),
        constants=constants,
        geometry=_geometry(lambda s: s.S, constants),
        writes=dict(y=Tile(x=("S", 1))),
        contract=dict(y=_contract(group)),
        work=lambda s: Work(
            read=min(s.S, s.E) * _bytes_of_weights(s, group) + s.T * s.K + 4 * s.T * s.K // 128,
            write=4 * s.S * s.N,
            flops=2 * s.S * s.N * s.K,
        ),
    )


linear_fp4_mx = _one("linear_fp4_mx", "MXFP4", UE8M0, 32)
linear_fp4_nv = _one("linear_fp4_nv", "NVFP4", E4M3, 16)
linear_fp4_mx_selected = _selected("linear_fp4_mx_selected", "MXFP4", UE8M0, 32)
linear_fp4_nv_selected = _selected("linear_fp4_nv_selected", "NVFP4", E4M3, 16)
