"""Joining what several ranks have in part, through mailboxes in each other's memory."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    I32,
    I64,
    Dim,
    Exact,
    Geometry,
    In,
    InOut,
    Out,
    Require,
    Scalar,
    Work,
    kernel,
)

THREADS = 256


def vector_of(size: int) -> int:
    """Elements of a thread for a part of that many."""
    return 1 if size % 4 else 4


def tiles_of(size: int) -> int:
    """Flags of a part of that many elements."""
    return -(-size // (THREADS * vector_of(size)))


def mailbox_words(ranks: int, rows: int, width: int) -> int:
    """Words of the mailbox of one rank, rounded up to whole vectors."""
    size = rows * width
    return -(-ranks * (2 * size + tiles_of(size)) // 4) * 4


def _constants(s: Shape) -> Mapping[str, int]:
    return dict(WIDTH=vector_of(s.T * s.D))


_MAILBOXES = (
    InOut("box", I32, "W", align=16),
    In("offsets", I64, "N"),
    InOut("state", I32, "S 2"),
    InOut("error", I32, "S"),
)
_REQUIRES = (
    Require("N >= 2 and N <= 32", because="a thread of the first warp waits for each peer"),
    Require("first >= 0 and first + S <= N", because="ranks are numbered from 0"),
    # Beside each other only to be watched: a rank of its own runs on a device of its own.
    Require("S <= 2", because="ranks of one launch wait for blocks that must have begun too"),
    Require("spins >= 1", because="a flag is looked at once at least"),
)
_CONTRACT = dict(
    box=Exact(because="parts are moved as they are, and flags count"),
    state=Exact(because="a count, and a ticket that is 0 between launches"),
    error=Exact(because="1 + a rank"),
)

join_add = kernel(
    name="join_add",
    family="join",
    summary="parts of all ranks, added in their order on each of them, peers waited for by flags",
    args=[
        In("x", F32, "S T D", align=16),
        *_MAILBOXES,
        Out("y", F32, "S T D", align=16),
        Dim("N"),
        Dim("T"),
        Dim("D"),
        Scalar("first", I32),
        Scalar("spins", I32),
    ],
    requires=_REQUIRES,
    constants=_constants,
    geometry=lambda s: Geometry(grid=(s.S, tiles_of(s.T * s.D)), block=THREADS),
    contract=dict(
        y=Exact(because="the order of the sum and its roundings to float32 are prescribed"),
        **_CONTRACT,
    ),
    work=lambda s: Work(
        read=4 * s.S * s.N * s.T * s.D,
        write=4 * s.S * s.N * s.T * s.D,
        flops=s.S * (s.N - 1) * s.T * s.D,
    ),
)

join_argmax = kernel(
    name="join_argmax",
    family="join",
    summary="the token with the largest logit of all ranks on each of them, ties to the lowest",
    args=[
        In("logit", F32, "S T"),
        In("ids", I32, "S T"),
        *_MAILBOXES,
        Out("y", I32, "S T"),
        Dim("N"),
        Dim("T"),
        Scalar("first", I32),
        Scalar("spins", I32),
        Scalar("share", I32),
    ],
    requires=(
        *_REQUIRES,
        Require(f"T <= {THREADS}", because="a thread takes a row"),
        Require("share >= 1", because="a rank has tokens of its own"),
    ),
    # The file is built for one width; rows of pairs have none.
    constants=lambda s: dict(WIDTH=1),
    geometry=lambda s: Geometry(grid=s.S, block=THREADS),
    contract=dict(
        y=Exact(because="an index; ties go to the lowest, NaN loses to any number"), **_CONTRACT
    ),
    work=lambda s: Work(read=8 * s.S * s.N * s.T, write=8 * s.S * s.N * s.T),
)
