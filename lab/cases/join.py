"""Inputs for joins: one rank of several, whose peers have been faster, are late, or are ahead.

The other ranks' letters lie in the mailbox already: a case is one launch, and what the peers do in
theirs is part of its input.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.kernels.join import mailbox_letters
from dsv4.spec import F32, Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, extreme, normal, sprinkled, subnormal, values, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0])


def _box(
    turn: int, parts: Fill, late: tuple[int, ...], ahead: tuple[int, ...], tokens: int = 0
) -> Fill:
    """Mailboxes full of letters: those of this turn in one half, of the turn before in the other.

    late: ranks of whom a tenth of the letters, and the last one, are of an earlier turn. ahead:
    those that have sent the next turn's as well. tokens: of a rank, where values are logits and
    tokens in turn.
    """

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        size = s.T * (2 if tokens else s.D)
        made = np.zeros((s.N, 2, s.N, size), np.uint64)
        for owner in made:
            held = parts(rng, owner.shape, F32, s)
            if tokens:
                ids = rng.integers(0, tokens, (2, s.N, s.T)) + tokens * np.arange(s.N)[:, None]
                held[:, :, 1::2] = ids.astype(np.int32).view(np.float32)
            stamps = np.full(owner.shape, turn)
            stamps[turn % 2] = turn + 1
            stamps[1 - turn % 2, list(ahead)] = turn + 2
            for source in late:
                missing = rng.random(size) < 0.1
                missing[-1] = True
                stamps[turn % 2, source, missing] = turn - 1
            owner[...] = (stamps % (1 << 32)).astype(np.uint64) << np.uint64(32)
            owner |= held.view(np.uint32)
        return made.view(np.int64).reshape(shape)

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
    held, letters = parts or normal(), mailbox_letters(N, T, D)
    count = np.array([turn], np.uint32).view(np.int32)[0]
    return Case(
        name, S=1, N=N, T=T, D=D, W=N * letters, first=first, spins=8, x=held,
        box=_box(turn, held, late, ahead),
        offsets=values(lambda rng, shape: letters * np.arange(shape[0])),
        state=values(lambda rng, shape: np.full(shape, count)), error=error, **more,
    )  # fmt: skip


@cases_for("join_add")
def join_cases() -> Iterator[Case]:
    """Sizes around the tile and the pair, turns of both parities, ranks in every place."""
    yield _case("smallest", N=2, T=1, D=1)
    yield _case("tail", N=3, T=7, D=131, first=1, turn=7)
    yield _case("tail of pairs", N=2, T=3, D=1036, first=1)
    yield _case("one tile", N=2, T=1, D=512, turn=0)
    yield _case("two tiles of single ones", N=2, T=1, D=257)
    yield _case("first of many", N=8, T=2, D=515)
    yield _case("last of many", N=8, T=2, D=516, first=7, turn=1)
    yield _case("most ranks", N=32, T=1, D=260, first=17)
    yield _case("counts wrap around", N=2, T=3, D=257, turn=2**32 - 1)
    yield _case("counts change sign", N=2, T=3, D=257, first=1, turn=2**31 - 1)
    yield _case("peer ahead", N=3, T=2, D=700, first=1, ahead=(0,))
    yield _case("peer late", N=3, T=2, D=1100, first=1, late=(2,))
    yield _case("peer late in single ones", N=3, T=3, D=257, first=2, late=(0,))
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
    held, letters = logits or normal(), mailbox_letters(N, T, 2)
    count = np.array([turn], np.uint32).view(np.int32)[0]
    return Case(
        name, S=1, N=N, T=T, W=N * letters, first=first, spins=8, share=share, logit=held,
        ids=values(lambda rng, shape: rng.integers(0, share, shape)),
        box=_box(turn, held, late, ahead, share),
        offsets=values(lambda rng, shape: letters * np.arange(shape[0])),
        state=values(lambda rng, shape: np.full(shape, count)), error=error,
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
