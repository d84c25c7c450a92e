"""Joining what several ranks have in part, through mailboxes in each other's memory."""

from collections.abc import Mapping

from dsv4.axes import Shape
from dsv4.spec import (
    F32,
    I32,
    I64,
    Arg,
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
    return 2 - size % 2


def tiles_of(size: int) -> int:
    """Blocks of a part of that many elements, each of which counts its turns."""
    return -(-size // (THREADS * vector_of(size)))


def mailbox_letters(ranks: int, rows: int, width: int) -> int:
    """Letters of the mailbox of one rank: an even number, so the next one's pairs are whole."""
    return 2 * ranks * rows * width


def _constants(s: Shape) -> Mapping[str, int]:
    return dict(WIDTH=vector_of(s.T * s.D))


def _mailboxes(tiles: str) -> tuple[Arg, ...]:
    return (
        InOut("box", I64, "W", align=16),
        In("offsets", I64, "N"),
        InOut("state", I32, f"S {tiles}"),
        InOut("error", I32, "S"),
    )


_REQUIRES = (
    Require("N >= 2", because="a rank alone has nobody to meet"),
    Require("first >= 0 and first + S <= N", because="ranks are numbered from 0"),
    # Beside each other only to be watched: a rank of its own runs on a device of its own.
    Require("S <= 2", because="ranks of one launch wait for blocks that must have begun too"),
    Require("spins >= 1", because="a letter is looked at once at least"),
)
_CONTRACT = dict(
    box=Exact(because="values are moved as they are, and stamps count"),
    state=Exact(because="a count of joins"),
    error=Exact(because="1 + a rank"),
)


def _work(s: Shape, values: int, flops: int = 0) -> Work:
    """Of `values` in a rank's part: itself, what comes from the peers, and what goes to them."""
    size = s.S * values * (4 + 8 * (s.N - 1))
    return Work(read=size, write=size, flops=flops)


join_add = kernel(
    name="join_add",
    family="join",
    summary="parts of all ranks, added in their order on each of them, each value with a stamp",
    reads_early=(),
    starts_early=True,
    args=[
        In("x", F32, "S T D", align=16),
        *_mailboxes(f"ceil(T*D/({THREADS}*(2-T*D%2)))"),
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
    work=lambda s: _work(s, s.T * s.D, flops=s.S * (s.N - 1) * s.T * s.D),
)

join_argmax = kernel(
    name="join_argmax",
    family="join",
    summary="the token with the largest logit of all ranks on each of them, ties to the lowest",
    reads_early=(),
    starts_early=True,
    args=[
        In("logit", F32, "S T"),
        In("ids", I32, "S T"),
        *_mailboxes("1"),
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
    # The file is built for one width; rows have none.
    constants=lambda s: dict(WIDTH=1),
    geometry=lambda s: Geometry(grid=s.S, block=THREADS),
    contract=dict(
        y=Exact(because="an index; ties go to the lowest, NaN loses to any number"), **_CONTRACT
    ),
    work=lambda s: _work(s, 2 * s.T),
)
