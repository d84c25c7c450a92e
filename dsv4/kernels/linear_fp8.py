"""Products of one to eight rows with FP8 weights in 128 x 128 blocks."""

from collections.abc import Callable

from dsv4.axes import Shape
from dsv4.kernels.linear_bf16 import BECAUSE, DEPTH, GROUPED, REQUIRES, constants, geometry_of
from dsv4.spec import (
    BF16,
    E4M3,
    F32,
    I32,
    Dim,
    Format,
    In,
    Kernel,
    Out,
    Scalar,
    Stride,
    Within,
    Work,
    kernel,
)


def _work(output: Format) -> Callable[[Shape], Work]:
    def work(s: Shape) -> Work:
        columns = s.K * (s.N // s.group if "group" in s else 1)
        return Work(
            read=s.N * s.K + 4 * -(-s.N // 128) * -(-s.K // 128) + 2 * s.M * columns,
            write=output.size_bytes * s.M * s.N,
            flops=2 * s.M * s.N * s.K,
        )

    return work


def _declare(name: str, summary: str, *, grouped: bool, output: Format = F32) -> Kernel:
    return kernel(
        name=name,
        family="linear_fp8",
        reads_early=("codes", "scales"),
        starts_early=True,
        summary=summary,
        args=[
            In("codes", E4M3, "N K", align=16),
            In("scales", F32, "ceil(N/128) ceil(K/128)"),
            In("x", BF16, "M N*K/group" if grouped else "M K", strided=True, align=16),
            Out("y", output, "M N", strided=True),
            Dim("N"),
            Dim("K"),
            *([Scalar("group", I32)] if grouped else []),
            Stride("x_stride", of="x"),
            Stride("y_stride", of="y"),
        ],
        requires=REQUIRES + (GROUPED if grouped else ()),
        constants=lambda s: constants(s, 1),
        geometry=lambda s: geometry_of(constants(s, 1), s.N, 1),
        contract=dict(
            y=Within(
                "dot",
                depth=DEPTH,
                terms="K",
                because=BECAUSE + "; a scale is fused with the addition of its group",
            )
        ),
        work=_work(output),
        batch_invariant="M",
        portable=False,
    )


linear_fp8 = _declare(
    "linear_fp8", "y = x (codes * scales)^T for 1 to 8 rows of x, FP8 weights", grouped=False
)
linear_fp8_grouped = _declare(
    "linear_fp8_grouped",
    "y = x w^T, every `group` rows of w on their own columns of x, FP8 weights",
    grouped=True,
)
linear_fp8_grouped_bf16 = _declare(
    "linear_fp8_grouped_bf16",
    "linear_fp8_grouped with y rounded to bf16, as the product behind it takes it",
    grouped=True,
    output=BF16,
)
