"""Inputs for joins: one rank of several, whose peers have been faster, are late, or are ahead.

The other ranks' parts and flags lie in the mailbox already: a case is one launch, and what the
peers do in theirs is part of its input.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.kernels.join import mailbox_words, tiles_of
from dsv4.spec import F32, Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, extreme, normal, sprinkled, subnormal, values, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0])


def _box(
    turn: int, parts: Fill, late: tuple[int, ...], ahead: tuple[int, ...], tokens: int = 0
) -> Fill:
    """Mailboxes with parts everywhere and flags of this turn, but for ranks that are elsewhere.

    late: ranks whose last part is that of the turn before. ahead: those that are one further.
    tokens: of a rank, where parts are logits and tokens.
    """

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        width = 2 if tokens else s.D
        size, tiles = s.T * width, 1 if tokens else tiles_of(s.T * width)
        made = np.zeros((s.N, mailbox_words(s.N, s.T, width)), np.uint32)
        for owner in made:
            held = parts(rng, (2, s.N, size), F32, s)
            if tokens:
                ids = rng.integers(0, tokens, (2, s.N, s.T)) + tokens * np.arange(s.N)[:, None]
                held[:, :, s.T :] = ids.astype(np.int32).view(np.float32)
            owner[: held.size] = held.view(np.uint32).reshape(-1)
            flags = owner[held.size : held.size + s.N * tiles].reshape(s.N, tiles)
            for source in range(s.N):
                moved = turn + 1 - (source in late) + (source in ahead)
                flags[source] = moved % (1 << 32)
            for source in late:
                # Only its last tile is missing: the others are there.
                flags[source, :-1] = (turn + 1) % (1 << 32)
        return made.view(np.int32).reshape(shape)

    return fill


def _case(
    name: str,
    *,
    N: int,
    T: int,
    D: int,
    first: int = 0,
    turn: int = 4,
    parts: Fill | None = None,
    late: tuple[int, ...] = (),
    ahead: tuple[int, ...] = (),
    error: int = 0,
    **more: Any,
) -> Case:
    held, words = parts or normal(), mailbox_words(N, T, D)
    count = np.array([turn], np.uint32).view(np.int32)[0]
    return Case(
        name, S=1, N=N, T=T, D=D, W=N * words, first=first, spins=8, x=held,
        box=_box(turn, held, late, ahead),
        offsets=values(lambda rng, shape: words * np.arange(shape[0])),
        state=values(lambda rng, shape: np.array([[count, 0]])), error=error, **more,
    )  # fmt: skip


@cases_for("join_add")
def join_cases() -> Iterator[Case]:
    """Sizes around the tile and the vector, turns of both parities, ranks in every place."""
    yield _case("smallest", N=2, T=1, D=1)
    yield _case("tail", N=3, T=7, D=131, first=1, turn=7)
    yield _case("tail of vectors", N=2, T=3, D=1036, first=1)
    yield _case("one tile", N=2, T=1, D=1024, turn=0)
    yield _case("first of many", N=8, T=2, D=515)
    yield _case("last of many", N=8, T=2, D=516, first=7, turn=1)
    yield _case("most ranks", N=32, T=1, D=260, first=17)
    yield _case("counts wrap around", N=2, T=3, D=257, turn=2**32 - 1)
    yield _case("counts change sign", N=2, T=3, D=257, first=1, turn=2**31 - 1)
    yield _case("peer ahead", N=3, T=2, D=700, first=1, ahead=(0,))
    yield _case("peer late", N=3, T=2, D=1100, first=1, late=(2,))
    yield _case("peers late", N=4, T=2, D=1100, late=(3, 1), error=1)
    yield _case("error kept", N=2, T=1, D=64, error=2)
    yield _case("cancel", N=4, T=3, D=515, parts=alternating(1.0, noise=1e-7))
    yield _case("binades", N=6, T=3, D=516, parts=wide(-149, 124))
    yield _case("subnormal", N=3, T=3, D=515, parts=subnormal())
    yield _case("extreme", N=3, T=3, D=515, parts=extreme(0.7))
    yield _case("special", N=3, T=5, D=515, first=2, parts=_SPECIAL)
    zeros = values(lambda rng, shape: rng.choice([0.0, -0.0], shape))
    yield _case("signs of zero", N=2, T=5, D=64, parts=zeros)
    yield _case("decode", N=2, T=1, D=4096)
    yield _case("verify", N=2, T=8, D=4096, first=1, turn=5)
    yield _case("eight cards", N=8, T=8, D=4096, first=3, level="full")


def _pairs(
    name: str,
    *,
    N: int,
    T: int,
    first: int = 0,
    turn: int = 4,
    share: int = 500,
    logits: Fill | None = None,
    late: tuple[int, ...] = (),
    ahead: tuple[int, ...] = (),
    error: int = 0,
) -> Case:
    held, words = logits or normal(), mailbox_words(N, T, 2)
    count = np.array([turn], np.uint32).view(np.int32)[0]
    return Case(
        name, S=1, N=N, T=T, W=N * words, first=first, spins=8, share=share, logit=held,
        ids=values(lambda rng, shape: rng.integers(0, share, shape)),
        box=_box(turn, held, late, ahead, share),
        offsets=values(lambda rng, shape: words * np.arange(shape[0])),
        state=values(lambda rng, shape: np.array([[count, 0]])), error=error,
    )  # fmt: skip


@cases_for("join_argmax")
def join_argmax_cases() -> Iterator[Case]:
    """Rows up to a block's threads, ties, and peers that are elsewhere."""
    few = values(lambda rng, shape: rng.choice([-1.0, 0.0, -0.0, 2.0], shape))
    yield _pairs("smallest", N=2, T=1)
    yield _pairs("tail", N=3, T=7, first=1, turn=7)
    yield _pairs("last of many", N=8, T=5, first=7, turn=1)
    yield _pairs("most rows", N=2, T=256, first=1)
    yield _pairs("ties", N=4, T=33, first=2, logits=few)
    yield _pairs("special", N=3, T=29, first=1, logits=_SPECIAL)
    nothing = values(lambda rng, shape: np.full(shape, np.nan))
    yield _pairs("no numbers", N=3, T=3, first=2, logits=nothing)
    yield _pairs("lowest", N=2, T=3, logits=values(lambda rng, shape: np.full(shape, -np.inf)))
    yield _pairs("peer ahead", N=3, T=2, first=1, ahead=(0,))
    yield _pairs("peer late", N=3, T=2, first=1, late=(2,), error=1)
    yield _pairs("counts wrap around", N=2, T=3, turn=2**32 - 1)
    yield _pairs("decode", N=2, T=1, share=64640)
    yield _pairs("verify", N=2, T=8, first=1, turn=5, share=64640)
