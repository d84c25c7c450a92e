"""RMS norm of rows with a gain, and of heads without one."""

from dsv4.spec import (
    F32,
    Contract,
    Dim,
    Geometry,
    In,
    InOut,
    Kernel,
    Out,
    Require,
    Scalar,
    Tile,
    Ulp,
    Within,
    Work,
    kernel,
)

_ROW_THREADS, _HEAD_THREADS = 512, 128

_POSITIVE_EPS = Require("eps > 0", "a row of zeros would divide by zero")

# The root halves the roundings of mean and mean + eps to one u together; root, reciprocal and the
# product with x add one each, and u is at most a spacing. The last product adds half a spacing.
# Where x * r is subnormal its rounding is absolute and the gain scales it: 5 covers gains up to 9.
_GAIN = Ulp(5, because="f64 mean; 4 relative roundings of f32, and half a spacing at the end")
_HEAD = Ulp(4, because="f64 mean; 3 relative roundings of f32, and half a spacing at the end")


def _chain(length: str, threads: int, levels: int) -> Within:
    """The bound for squares summed in f32: one fused square an element, then the butterflies."""
    return Within(
        "norm",
        depth=f"ceil({length}/{threads}) + {levels}",
        because="f32 sum of positive squares: lanes, two butterflies; then the roundings of a norm",
    )


def _row(name: str, summary: str, contract: Contract) -> Kernel:
    return kernel(
        name=name,
        family="rms_norm",
        summary=summary,
        args=[
            In("x", F32, "T D"),
            In("w", F32, "D"),
            Out("y", F32, "T D"),
            Dim("D"),
            Scalar("eps", F32),
        ],
        requires=(_POSITIVE_EPS,),
        geometry=lambda s: Geometry(grid=s.T, block=_ROW_THREADS),
        writes=dict(y=Tile(x=("T", 1))),
        contract=dict(y=contract),
        work=lambda s: Work(read=4 * s.T * s.D + 4 * s.D, write=4 * s.T * s.D, flops=4 * s.T * s.D),
        batch_invariant="T",
    )


def _per_head(name: str, summary: str, contract: Contract) -> Kernel:
    return kernel(
        name=name,
        family="rms_norm",
        summary=summary,
        args=[InOut("x", F32, "T H K"), Dim("K"), Scalar("eps", F32)],
        requires=(_POSITIVE_EPS,),
        geometry=lambda s: Geometry(grid=s.T * s.H, block=_HEAD_THREADS),
        contract=dict(x=contract),
        work=lambda s: Work(
            read=4 * s.T * s.H * s.K, write=4 * s.T * s.H * s.K, flops=3 * s.T * s.H * s.K
        ),
        batch_invariant="T",
    )


rms_norm = _row("rms_norm", "rows over their root mean square, times a gain; f64 sums", _GAIN)
rms_norm_f32 = _row(
    "rms_norm_f32",
    "rows over their root mean square, times a gain; f32 sums",
    _chain("D", _ROW_THREADS, 5 + 4),
)
rms_norm_head = _per_head(
    "rms_norm_head", "each head's lanes over their root mean square, in place; f64 sums", _HEAD
)
rms_norm_head_f32 = _per_head(
    "rms_norm_head_f32",
    "each head's lanes over their root mean square, in place; f32 sums",
    _chain("K", _HEAD_THREADS, 5 + 2),
)
