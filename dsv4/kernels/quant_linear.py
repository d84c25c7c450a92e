"""Products with weights in blocks of 32: the quantised precisions of drafters."""

from dsv4.spec import (
    F16,
    F32,
    U8,
    Dim,
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

_WARPS = 8


def _product(name: str, summary: str, width: str) -> Kernel:
    return kernel(
        name=name,
        family="quant_linear",
        summary=summary,
        args=[
            In("x", F32, "T K"),
            In("codes", U8, f"N {width}", align=16),
            In("scales", F16, "N ceil(K/32)"),
            Out("y", F32, "T N"),
            Dim("T"),
            Dim("N"),
            Dim("K"),
        ],
        requires=(Require("K % 32 == 0", "rows come in blocks of 32"),),
        constants=lambda s: dict(ROWS=min(s.T, 8)),
        geometry=lambda s: Geometry(
            grid=(-(-s.N // _WARPS), -(-s.T // min(s.T, 8))), block=32 * _WARPS
        ),
        writes=dict(y=Tile(x=("N", _WARPS), y=("T", 8))),
        contract=dict(
            y=Within(
                "dot",
                depth="32 + ceil(K/1024) + 5",
                terms="K",
                because="a chain in each block, a chain of a lane's blocks, the butterfly",
            )
        ),
        work=lambda s: Work(
            read=s.N * s.K // (2 if "/" in width else 1) + s.N * s.K // 16 + 4 * s.T * s.K,
            write=4 * s.T * s.N,
            flops=2 * s.T * s.N * s.K,
        ),
        batch_invariant="T",
    )


quant_linear_q8 = _product("quant_linear_q8", "y = x w^T, weights as signed bytes", "K")
quant_linear_q4 = _product("quant_linear_q4", "y = x w^T, weights as nibbles", "K/2")
