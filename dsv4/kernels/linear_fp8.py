"""Products of one to eight rows with FP8 weights in 128 x 128 blocks."""

from dsv4.kernels.linear_bf16 import DEPTH, REQUIRES, constants, geometry
from dsv4.spec import BF16, E4M3, F32, Dim, In, Out, Stride, Within, Work, kernel

linear_fp8 = kernel(
    name="linear_fp8",
    family="linear_fp8",
    summary="y = x (codes * scales)^T for 1 to 8 rows of x, FP8 weights",
    args=[
        In("codes", E4M3, "N K", align=16),
        In("scales", F32, "ceil(N/128) ceil(K/128)"),
        In("x", BF16, "M K", strided=True, align=16),
        Out("y", F32, "M N", strided=True),
        Dim("N"),
        Dim("K"),
        Stride("x_stride", of="x"),
        Stride("y_stride", of="y"),
    ],
    requires=REQUIRES,
    constants=constants,
    geometry=geometry,
    contract=dict(
        y=Within(
            "dot",
            depth=f"{DEPTH} + 1",
            terms="K",
            because="as linear_bf16, after one rounding of code * scale for any scale but 2^k",
        )
    ),
    work=lambda s: Work(
        read=s.N * s.K + 4 * -(-s.N // 128) * -(-s.K // 128) + 2 * s.M * s.K,
        write=4 * s.M * s.N,
        flops=2 * s.M * s.N * s.K,
    ),
    batch_invariant="M",
)
