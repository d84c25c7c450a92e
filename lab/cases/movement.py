"""Inputs for data movement: odd widths, ids outside the array, windows at both ends."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, extreme, ids, normal, sprinkled, subnormal, wide
from lab.weights import Checkpoint, bf16_matrix, weights_for

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0])
_OUTSIDE = (-1, -(2**31), 2**31 - 1)


def _stray(below: str, *, repeats: bool = True) -> Fill:
    """Ids of which about a third lie outside [0, below): masked, negative, too large by one."""
    inside = ids(below, repeats=repeats)

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        chosen = inside(rng, shape, fmt, s)
        outside = rng.choice([*_OUTSIDE, int(s[below])], shape)
        return np.where(rng.random(shape) < 0.35, outside, chosen).astype(np.int32)

    return fill


def _id(value: int) -> np.ndarray:
    return np.array([value], np.int32)


@cases_for("movement_embed")
def movement_embed_cases() -> Iterator[Case]:
    """Decode, verify and prompt rows; ids at both ends and outside."""
    yield Case("one", V=1, D=1, T=1, ids=_id(0))
    yield Case("tail", V=37, D=515, T=7, ids=ids("V"))
    yield Case("last id", V=512, D=4096, T=1, ids=_id(511))
    yield Case("stray", V=19, D=257, T=40, ids=_stray("V"))
    yield Case("special", V=19, D=257, T=5, ids=ids("V"), table=_SPECIAL)
    yield Case("subnormal", V=19, D=257, T=5, ids=ids("V"), table=subnormal())
    yield Case("verify", V=512, D=4096, T=6, ids=ids("V"))
    yield Case("prompt", V=16160, D=4096, T=512, ids=ids("V"), level="full")


@cases_for("movement_gather")
def movement_gather_cases() -> Iterator[Case]:
    """Expert groups; rows that start on 16 bytes and rows that do not."""
    yield Case("one", S=1, D=1, A=1, ids=_id(0))
    yield Case("tail", S=33, D=1003, A=9, ids=ids("S"))
    yield Case("even tail", S=5, D=2052, A=7, ids=ids("S"))
    yield Case("stray", S=5, D=264, A=40, ids=_stray("S"))
    yield Case("special", S=5, D=130, A=11, ids=ids("S"), x=_SPECIAL)
    yield Case("expert group", S=32, D=4096, A=24, ids=ids("S"))
    yield Case("prefill", S=512, D=4096, A=512 * 6, ids=ids("S"), level="full")


@cases_for("movement_gather_bytes")
def movement_gather_bytes_cases() -> Iterator[Case]:
    """Codes and byte views of scale rows."""
    yield Case("one", S=1, D=1, A=1, ids=_id(0))
    yield Case("tail", S=33, D=1003, A=9, ids=ids("S"))
    yield Case("stray", S=5, D=272, A=40, ids=_stray("S"))
    yield Case("scale rows", S=32, D=128, A=24, ids=ids("S"))
    yield Case("expert group", S=32, D=4096, A=24, ids=ids("S"))
    yield Case("prefill", S=512, D=4096, A=512 * 6, ids=ids("S"), level="full")


@cases_for("movement_gather_row")
def movement_gather_row_cases() -> Iterator[Case]:
    """The Markov row of a draft token, and ids that no row has."""
    yield Case("one", S=1, D=1, A=1, slot=0, ids=_id(0))
    yield Case("tail", S=41, D=259, A=5, slot=4, ids=ids("S"))
    yield Case("negative", S=41, D=256, A=1, slot=0, ids=_id(-1))
    yield Case("too large", S=41, D=256, A=1, slot=0, ids=_id(41))
    yield Case("special", S=3, D=261, A=2, slot=1, ids=ids("S"), x=_SPECIAL)
    yield Case("markov", S=2048, D=256, A=5, slot=3, ids=ids("S"))
    yield Case("vocabulary", S=129280, D=256, A=5, slot=3, ids=ids("S"), level="full")


@cases_for("movement_scatter", "movement_scatter_bf16", "movement_scatter_add")
def movement_scatter_cases() -> Iterator[Case]:
    """Distinct ids, ids that are skipped, sums that cancel, round and overflow."""
    yield Case("one", S=1, D=1, A=1, ids=_id(0))
    yield Case("tail", S=33, D=1003, A=9, ids=ids("S", repeats=False))
    yield Case("every row", S=17, D=260, A=17, ids=ids("S", repeats=False))
    yield Case("stray", S=40, D=264, A=31, ids=_stray("S", repeats=False))
    yield Case("special", S=9, D=515, A=8, ids=ids("S", repeats=False), x=_SPECIAL, y=_SPECIAL)
    yield Case("binades", S=9, D=4097, A=8, ids=ids("S", repeats=False), x=wide(-149, 127))
    yield Case(
        "subnormal", S=9, D=515, A=8, ids=ids("S", repeats=False), x=subnormal(), y=subnormal()
    )
    yield Case("extreme", S=9, D=515, A=8, ids=ids("S", repeats=False), x=extreme(), y=extreme(0.5))
    yield Case("combine", S=32, D=4096, A=12, ids=ids("S", repeats=False))
    yield Case("prefill", S=2048, D=4096, A=1024, ids=ids("S", repeats=False), level="full")


@cases_for("movement_add")
def movement_add_cases() -> Iterator[Case]:
    """Sums that cancel, that lose the smaller addend, that overflow."""
    yield Case("one", N=1)
    yield Case("tail", N=257)
    yield Case("cancel", N=1000, x=alternating(1.0), y=alternating(-1.0, noise=1e-7))
    yield Case("binades", N=5000, x=wide(-149, 127), y=wide(-149, 127))
    yield Case("near ties", N=5000, x=wide(-30, -20), y=normal())
    yield Case("subnormal", N=513, x=subnormal(), y=subnormal())
    yield Case("extreme", N=300, x=extreme(), y=extreme())
    yield Case("special", N=777, x=_SPECIAL, y=_SPECIAL)
    yield Case("logits", N=129280)
    yield Case("prefill", N=2048 * 4096, level="full")


@cases_for("movement_take")
def movement_take_cases() -> Iterator[Case]:
    """Windows at both ends, odd offsets, the whole row."""
    yield Case("one", T=1, S=1, C=1, offset=0)
    yield Case("tail", T=7, S=515, C=257, offset=131)
    yield Case("last columns", T=3, S=700, C=64, offset=636)
    yield Case("whole row", T=2, S=260, C=260, offset=0)
    yield Case("special", T=3, S=515, C=300, offset=4, x=_SPECIAL)
    yield Case("group", T=2, S=32768, C=4096, offset=7 * 4096)
    yield Case("prefill", T=256, S=32768, C=4096, offset=3 * 4096, level="full")


@cases_for("movement_place")
def movement_place_cases() -> Iterator[Case]:
    """The rest of each row stays what it was."""
    yield Case("one", T=1, S=1, C=1, offset=0)
    yield Case("tail", T=7, S=515, C=257, offset=131)
    yield Case("last columns", T=3, S=700, C=64, offset=636)
    yield Case("whole row", T=2, S=260, C=260, offset=0)
    yield Case("special", T=3, S=515, C=300, offset=4, x=_SPECIAL, y=_SPECIAL)
    yield Case("tap", T=2, S=12288, C=4096, offset=8192)
    yield Case("prefill", T=512, S=12288, C=4096, offset=4096, level="full")


@cases_for("movement_repeat", "movement_mean")
def movement_stream_cases() -> Iterator[Case]:
    """Four streams, other counts, sums in which the order of the streams shows."""
    yield Case("one", T=1, M=1, D=1)
    yield Case("tail", T=7, M=3, D=259)
    yield Case("two streams", T=2, M=2, D=512)
    yield Case("binades", T=3, M=4, D=515, x=wide(-149, 120))
    yield Case("subnormal", T=3, M=4, D=515, x=subnormal())
    yield Case("extreme", T=3, M=4, D=515, x=extreme(0.4))
    yield Case("special", T=3, M=4, D=515, x=_SPECIAL)
    yield Case("decode", T=1, M=4, D=4096)
    yield Case("verify", T=6, M=4, D=4096)
    yield Case("prefill", T=512, M=4, D=4096, level="full")


@weights_for("movement_embed")
def _embedding(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    table = bf16_matrix(checkpoint, name)
    if table is None or "embed" not in name:
        return None
    return dict(V=table.shape[0], D=table.shape[1], T=5, table=table, ids=ids("V"))
