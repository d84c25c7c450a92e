"""Stored weights to bf16 (or f32 scales), with a count of what bf16 could not hold."""

from dsv4.spec import (
    BF16,
    E2M1X2,
    E4M3,
    F32,
    I32,
    I64,
    UE8M0,
    Arg,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Kernel,
    Out,
    Tile,
    Work,
    kernel,
)

_ONE_ROUNDING = Exact(because="the exact product is rounded once, at the store")
_COUNT = Exact(because="an integer count; the order of integer additions does not matter")

dequant_fp8_block = kernel(
    name="dequant_fp8_block",
    family="dequant",
    summary="e4m3 codes times a ue8m0 scale per 128 x 128 block, to bf16",
    args=[
        In("codes", E4M3, "N K", align=16),
        In("scales", UE8M0, "ceil(N/128) ceil(K/128)"),
        Out("y", BF16, "N K", align=16),
        InOut("inexact", I32, "1"),
        Dim("N"),
        Dim("K"),
    ],
    constants=lambda s: dict(WIDTH=16 if s.K % 16 == 0 else 1),
    geometry=lambda s: Geometry(grid=(-(-s.K // 128), -(-s.N // 128)), block=256),
    writes=dict(y=Tile(x=("K", 128), y=("N", 128))),
    contract=dict(y=_ONE_ROUNDING, inexact=_COUNT),
    work=lambda s: Work(
        read=s.N * s.K + -(-s.N // 128) * -(-s.K // 128), write=2 * s.N * s.K, flops=s.N * s.K
    ),
)


def _fp4(name: str, summary: str, group: int, *scales: Arg) -> Kernel:
    """Packed e2m1 codes times a scale for each group of a row, and any further scales."""
    return kernel(
        name=name,
        family="dequant",
        summary=summary,
        args=[
            In("codes", E2M1X2, "N K/2", align=4),
            *scales,
            Out("y", BF16, "N K", align=16),
            InOut("inexact", I32, "1"),
            Dim("N"),
            Dim("K"),
        ],
        geometry=lambda s: Geometry(grid=(s.N, -(-s.K // 2048)), block=256),
        writes=dict(y=Tile(x=("N", 1), y=("K", 2048))),
        contract=dict(y=_ONE_ROUNDING, inexact=_COUNT),
        work=lambda s: Work(
            read=s.N * s.K // 2 + s.N * s.K // group,
            write=2 * s.N * s.K,
            flops=len(scales) * s.N * s.K,
        ),
    )


dequant_mxfp4 = _fp4(
    "dequant_mxfp4",
    "packed e2m1 codes times a ue8m0 scale per 32, to bf16",
    32,
    In("scales", UE8M0, "N K/32"),
)

dequant_nvfp4 = _fp4(
    "dequant_nvfp4",
    "packed e2m1 codes times an e4m3 scale per 16 times one f32 scale, to bf16",
    16,
    In("scales", E4M3, "N K/16"),
    In("scale2", F32, "1"),
)

dequant_ue8m0 = kernel(
    name="dequant_ue8m0",
    family="dequant",
    summary="scale bytes to powers of two in f32",
    args=[In("codes", UE8M0, "N"), Out("y", F32, "N"), Dim("N", I64)],
    geometry=lambda s: Geometry(grid=-(-s.N // 256), block=256),
    writes=dict(y=Tile(x=("N", 256), per_thread=1)),
    contract=dict(y=Exact(because="every scale byte is a float32")),
    work=lambda s: Work(read=s.N, write=4 * s.N),
    batch_invariant="N",
)
